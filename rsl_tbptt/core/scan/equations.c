/* One step of a cell that is given by its equations, in one pass; see cells.c, whose rules hold.
 *
 * EQUATIONS is a file that cpu.py writes. It defines GATES, INPUT_GATES, HIDDEN_GATES, NUM_STATES,
 * and the statements FORWARD and BACKWARD, which use the names defined here.
 */
#include "cells.c"
#include EQUATIONS

#define STEP_GATES (GATES + HIDDEN_GATES)

/* A step's product has the sums of x and h', then those of h' alone. `input_gates` has those of x
 * alone, from the window's product. Gates are numbered in the order both, x alone, h' alone. */
#define OF_STEP(k) ((n * STEP_GATES + (k < GATES ? k : k - INPUT_GATES)) * H + j)
#define OF_INPUT(k) ((n * INPUT_GATES + k - GATES) * H + j)
#define IS_INPUT(k) (k >= GATES && k < GATES + INPUT_GATES)

/* gates: receives the product, which may be the same memory. next_before and next_input receive h,
 * or zeros, and may be the same memory. c is not touched if the state is h alone. */
void cell_forward(int64_t N, int64_t H, int threads, int64_t before_stride, int64_t input_stride,
                  const operand *product, REAL *gates, const REAL *input_gates,
                  const REAL *h_before, const REAL *c_before, REAL *c_after, REAL *h,
                  REAL *next_before, operand *next_input, const uint8_t *next_starts)
{
#define gate(k) (IS_INPUT(k) ? input_gates[OF_INPUT(k)] : (gates[OF_STEP(k)] = from_operand(product[OF_STEP(k)])))
#define before(s) (s == 0 ? h_before[n * before_stride + j] : c_before[n * H + j])
#define after(s, value) ((s == 0 ? h : c_after)[n * H + j] = s && start ? (REAL)0 : (value))
    FOR_EACH_ENV {
        const int start = next_starts && next_starts[n];
        FOR_EACH_UNIT {
            FORWARD
        }
        if (!next_input)
            continue;
        FOR_EACH_UNIT {
            const REAL value = start ? (REAL)0 : h[n * H + j];
            next_before[n * before_stride + j] = value;
            next_input[n * input_stride + j] = to_operand(value);
        }
    }
#undef gate
}

/* grads and input_grads: receive the gradients of gates and input_gates; they may be the same
 * memory. dh_gates: the gradient of h from step t + 1 through its gates; carried: the rest of it,
 * then that of c, (NUM_STATES, N, H), for step t - 1 out. */
void cell_backward(int64_t N, int64_t H, int threads, int64_t before_stride, const REAL *gates,
                   operand *grads, const REAL *input_gates, operand *input_grads,
                   const REAL *h_before, const REAL *c_before, const REAL *grad_h,
                   const uint8_t *later_starts, const operand *dh_gates, REAL *carried)
{
#define gate(k) (IS_INPUT(k) ? input_gates[OF_INPUT(k)] : gates[OF_STEP(k)])
#define of_carried(s) carried[(s * N + n) * H + j]
#define grad_after(s) ((start ? (REAL)0 : of_carried(s) + (s ? (REAL)0 : from_operand(dh_gates[n * H + j]))) \
                       + (s ? (REAL)0 : grad_h[n * H + j]))
#define grad_gate(k, value) ((IS_INPUT(k) ? input_grads : grads)[IS_INPUT(k) ? OF_INPUT(k) : OF_STEP(k)] = to_operand(value))
#define grad_before(s, value) (of_carried(s) = (value))
    FOR_EACH_ENV {
        const int start = later_starts && later_starts[n];
        FOR_EACH_UNIT {
            BACKWARD
        }
    }
}
