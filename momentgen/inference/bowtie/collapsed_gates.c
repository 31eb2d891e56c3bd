// Gates of the topmost hidden layer, one unit after the other, its activations integrated out.
// collapsed.py explains the formulas; rows of data are independent and lie side by side, so that the inner loops run
// over them.

#include <stdint.h>

void collapsed_gates(
    int64_t chains, int64_t units, int64_t outputs, int64_t n,
    const double *known,   // units x chains x n
    const double *before,  // units x chains x n
    const double *u,       // units x chains x n
    const double *matrix,  // units x chains x outputs
    double *residual,      // chains x outputs x n, updated
    double *work,          // n
    double *after)         // units x chains x n, written
{
    for (int64_t unit = 0; unit < units; ++unit)
        for (int64_t chain = 0; chain < chains; ++chain) {
            const int64_t at = unit * chains + chain;
            const double *const k = known + at * n, *const b = before + at * n, *const v = u + at * n;
            const double *const column = matrix + at * outputs;
            double *const r = residual + chain * outputs * n, *const a = after + at * n;
            for (int64_t i = 0; i < n; ++i) work[i] = column[0] * r[i];
            for (int64_t o = 1; o < outputs; ++o)
                for (int64_t i = 0; i < n; ++i) work[i] += column[o] * r[o * n + i];
            for (int64_t i = 0; i < n; ++i) {
                a[i] = k[i] + v[i] * work[i] > 0.0 ? 1.0 : 0.0;
                work[i] = (a[i] - b[i]) * v[i];
            }
            for (int64_t o = 0; o < outputs; ++o)
                for (int64_t i = 0; i < n; ++i) r[o * n + i] -= column[o] * work[i];
        }
}
