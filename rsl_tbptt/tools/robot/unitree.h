/* $checkpoint behind the interface of unitree_rl_lab and unitree_rl_mjlab.
 * Include it below isaaclab/algorithms/algorithms.h. */
#pragma once

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

/* What emx-onnx-cgen writes with `--model-name policy_step`: docs/howto/runtimes.md. */
extern "C" void policy_step($parameters);

namespace isaaclab {

class RecurrentPolicy : public Algorithms {
public:
    /* episode_length: the environment's step counter. Its reset() sets it to 0, and its step() adds
     * 1 before it calls act(). So it is 1 at the first step of an episode: act() clears the memory. */
    explicit RecurrentPolicy(const long &episode_length) : episode_length_(episode_length) {
        action.assign($num_actions, 0.0f);
        reset();
    }

    /* Releases differ in the argument of act(). This is the older form. The newer form has a map of
     * groups; a deploy.yaml that lists only terms has one group, "obs". */
    std::vector<float> act(std::vector<float> obs) {
        if (obs.size() != $num_obs)
            throw std::runtime_error("deploy.yaml gives " + std::to_string(obs.size()) +
                                     " observations, the policy takes $num_obs");
        if (episode_length_ <= 1) reset();
        std::vector<float> actions($num_actions), after($num_numbers);
        policy_step($arguments);
        state_ = after;
        std::lock_guard<std::mutex> lock(act_mtx_);
        return action = actions;
    }

    std::vector<float> act(std::unordered_map<std::string, std::vector<float>> obs) {
        return act(obs.at("obs"));
    }

    /* Clear the memory: an episode begins. */
    void reset() { state_.assign($num_numbers, 0.0f); }

private:
    const long &episode_length_;
    std::vector<float> state_;
};

} // namespace isaaclab
