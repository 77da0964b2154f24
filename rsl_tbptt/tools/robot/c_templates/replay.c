/* Replays a trajectory with a policy in C. A row of stdin is 1 + POLICY_NUM_OBS floats: whether the
 * memory is cleared first, then the observation. A row of stdout is the actions. */
#include "policy.h"

#include <stdio.h>

int main(void) {
    static float row[1 + POLICY_NUM_OBS], actions[POLICY_NUM_ACTIONS];
    policy_init();
    while (fread(row, sizeof row, 1, stdin)) {
        if (row[0] > 0.0f) policy_reset();
        policy_step(row + 1, actions);
        if (!fwrite(actions, sizeof actions, 1, stdout)) return 1;
    }
    return fflush(stdout) != 0;
}
