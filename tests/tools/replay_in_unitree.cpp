#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

/* Runs rows of an episode's start and observations, WIDTH numbers each, through Unitree's class.
 * Stands in for the interface by which unitree_rl_lab and unitree_rl_mjlab call a policy. */
namespace isaaclab {
#ifdef BY_GROUP
using Observations = std::unordered_map<std::string, std::vector<float>>;
static Observations observed(std::vector<float> obs) { return {{"obs", obs}}; }
#else
using Observations = std::vector<float>;
static Observations observed(std::vector<float> obs) { return obs; }
#endif
class Algorithms {
public:
    virtual ~Algorithms() = default;
    virtual std::vector<float> act(Observations obs) = 0;
    std::vector<float> get_action() { std::lock_guard<std::mutex> l(act_mtx_); return action; }
    std::vector<float> action;
protected:
    std::mutex act_mtx_;
};
} // namespace isaaclab

#include "policy_unitree.h"

struct Env {
    std::unique_ptr<isaaclab::Algorithms> alg;
    long episode_length = 0;
    void reset() { episode_length = 0; }
    void step(std::vector<float> obs) { ++episode_length; alg->act(isaaclab::observed(obs)); }
};

int main() {
    Env env;
    env.alg = std::make_unique<isaaclab::RecurrentPolicy>(env.episode_length);
    std::vector<float> row(WIDTH);
    while (std::fread(row.data(), sizeof(float), WIDTH, stdin) == WIDTH) {
        if (row[0]) env.reset();
        env.step({row.begin() + 1, row.end()});
        std::vector<float> actions = env.alg->get_action();
        std::fwrite(actions.data(), sizeof(float), actions.size(), stdout);
    }
    try {
        env.step({1.0f});
    } catch (const std::runtime_error &error) {
        return std::string(error.what()).find("gives 1 observations") == std::string::npos;
    }
    return 1;
}
