// Replays a trajectory with LibTorch alone, as controllers in C++ run a policy.
//
//   replay policy.pt NUM_OBS < ROWS > ACTIONS
//
// A row is 1 + NUM_OBS floats: whether the memory is cleared first, then the observation. The
// release of LibTorch goes to stderr.
#include <torch/script.h>
#include <torch/version.h>

#include <cstdio>
#include <string>
#include <vector>

int main(int, char **arguments) {
  torch::jit::Module policy = torch::jit::load(arguments[1]);
  const int64_t num_obs = std::stoi(arguments[2]);
  c10::InferenceMode inference;
  std::vector<float> row(1 + num_obs);
  while (std::fread(row.data(), sizeof(float), row.size(), stdin) == row.size()) {
    if (row[0] > 0) policy.get_method("reset")({});
    const torch::Tensor obs = torch::from_blob(row.data() + 1, {1, num_obs});
    const torch::Tensor actions = policy.forward({obs}).toTensor().contiguous();
    std::fwrite(actions.data_ptr<float>(), sizeof(float), actions.numel(), stdout);
  }
  std::fputs(TORCH_VERSION, stderr);
}
