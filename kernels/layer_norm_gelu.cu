// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The Ridgepoint authors
//
// LayerNorm and GELU as one kernel in CUDA C++, forward and backward. layer_norm_gelu_cuda.py beside it compiles and
// launches it; copy both.
//
//     z = (x - mean) * rstd * weight + bias    with rstd = 1 / sqrt(variance + eps), over the last dimension
//     y = z * Phi(z)                           Phi is the normal distribution's, or approximated with tanh
//
// Sources: Ba, Kiros & Hinton, "Layer Normalization", 2016 (https://arxiv.org/abs/1607.06450);
// Hendrycks & Gimpel, "Gaussian Error Linear Units (GELUs)", 2016 (https://arxiv.org/abs/1606.08415);
// for the variance from parts: Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance", 1983.
//
// It includes nothing, so that NVRTC compiles it without a toolkit; with one, `nvcc -std=c++17 -arch=sm_90 -cubin
// layer_norm_gelu.cu` does. What a compilation is for stands in macros, and -DTHREADS=256 replaces one of them.

#ifndef X
#define X bf16  // or fp16, float: the dtypes of x and dx, of the parameters (or none), of y and dy
#endif
#ifndef WEIGHT
#define WEIGHT bf16
#endif
#ifndef BIAS
#define BIAS bf16
#endif
#ifndef Y
#define Y bf16
#endif
#ifndef TANH
#define TANH 0  // 1: the approximation with tanh
#endif
#ifndef FINE
#define FINE 0  // 1: Phi to the last bits of fp32
#endif
#ifndef EXACT
#define EXACT 1  // sums of equal numbers are not rounded: these have few bits, and a row few numbers
#endif
#ifndef VECTOR
#define VECTOR 8  // neighbouring elements that a thread has: 16 bytes of the widest dtype, or 1
#endif
#ifndef VECTORS
#define VECTORS 4  // that a thread has of a row
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 1  // that a block has at once
#endif
#ifndef STAGES
#define STAGES 2  // how many times these are on their way
#endif
#ifndef BLOCKS
#define BLOCKS 4  // at least, on a multiprocessor: what registers must leave room for
#endif
#ifndef FULL
#define FULL 1  // the row, or each slice of it, has a number for every thread
#endif
#ifndef SLICED
#define SLICED 0  // 1: a row is more than one block has
#endif
#ifndef PARAMETERS
#define PARAMETERS 1  // 0: dx alone is asked for
#endif
#ifndef STREAM
#define STREAM 0  // 1: y and dx leave the L2 cache first
#endif

constexpr int WARPS = THREADS / 32, PATIENCE = 100;
constexpr int NEXT_POWER = WARPS > 16 ? 32 : WARPS > 8 ? 16 : WARPS > 4 ? 8 : WARPS > 2 ? 4 : WARPS;

// --8<-- [start:memory]
struct bf16 { unsigned short bits; };
struct fp16 { unsigned short bits; };
struct none {};  // of a parameter that there is not

__device__ __forceinline__ float low(unsigned int word, bf16) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high(unsigned int word, bf16) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ float low(unsigned int word, fp16) {
    float value;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(word));
    return value;
}
__device__ __forceinline__ float high(unsigned int word, fp16) { return low(word >> 16, fp16()); }
__device__ __forceinline__ unsigned int pair(float low, float high, bf16) {
    unsigned int word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
__device__ __forceinline__ unsigned int pair(float low, float high, fp16) {
    unsigned int word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/// VECTOR neighbouring numbers as they lie in memory.
template <typename T> struct Vector {
    static constexpr int BYTES = VECTOR * sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4;
    unsigned int word[WORDS];

    /// From shared or global memory, at a multiple of 16 bytes, or of BYTES where these are fewer.
    __device__ __forceinline__ void load(const void* from) {
        if constexpr (BYTES == 2) {
            word[0] = *(const unsigned short*)from;
        } else if constexpr (WORDS == 1) {
            word[0] = *(const unsigned int*)from;
        } else if constexpr (WORDS == 2) {
            const uint2 two = *(const uint2*)from;
            word[0] = two.x, word[1] = two.y;
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 four = ((const uint4*)from)[w / 4];
                word[w] = four.x, word[w + 1] = four.y, word[w + 2] = four.z, word[w + 3] = four.w;
            }
        }
    }
    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int w = 0; w < WORDS; w++) word[w] = 0;
    }
    __device__ __forceinline__ float operator[](int n) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(word[n]);
        else return n % 2 ? high(word[n / 2], T()) : low(word[n / 2], T());
    }
    /// Not yet: what comes of it is not worth a register until the next row.
    __device__ __forceinline__ void keep() {
#pragma unroll
        for (int w = 0; w < WORDS; w++) asm volatile("" : "+r"(word[w]));
    }
};
template <> struct Vector<none> {
    __device__ __forceinline__ void keep() {}
    __device__ __forceinline__ void zero() {}
};

__device__ __forceinline__ void of(const Vector<none>&, float (&values)[VECTOR], float absent) {
#pragma unroll
    for (int n = 0; n < VECTOR; n++) values[n] = absent;
}
template <typename T> __device__ __forceinline__ void of(const Vector<T>& vector, float (&values)[VECTOR], float) {
#pragma unroll
    for (int n = 0; n < VECTOR; n++) values[n] = vector[n];
}

template <typename T> __device__ __forceinline__ void store(T* to, const float (&values)[VECTOR]) {
    constexpr int WORDS = Vector<T>::WORDS;
    if constexpr (Vector<T>::BYTES == 2) {
        to->bits = pair(values[0], 0.0f, T());
    } else if constexpr (Vector<T>::BYTES == 4) {
        *(float*)to = values[0];
    } else {
        unsigned int word[WORDS];
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            if constexpr (sizeof(T) == 4) word[w] = __float_as_uint(values[w]);
            else word[w] = pair(values[2 * w], values[2 * w + 1], T());
        if constexpr (WORDS == 2) {
            const uint2 two = make_uint2(word[0], word[1]);
            STREAM ? __stcs((uint2*)to, two) : (void)(*(uint2*)to = two);
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 four = make_uint4(word[w], word[w + 1], word[w + 2], word[w + 3]);
                STREAM ? __stcs((uint4*)to + w / 4, four) : (void)(((uint4*)to)[w / 4] = four);
            }
        }
    }
}
// --8<-- [end:memory]

// --8<-- [start:ring]
// A thread copies what it will need itself to shared memory, past its registers and STAGES times ahead, and waits for
// nobody: cp.async, which all GPUs have from the A100 on. Rows that begin where no vector may are read when needed.
constexpr bool AHEAD = VECTOR > 1;
extern __shared__ uint4 ring[];

template <typename T> __device__ __forceinline__ char* slot(int stage, int row, int vector) {
    const int vectors = ((stage * ROWS + row) * VECTORS + vector) * THREADS + threadIdx.x;
    return (char*)ring + vectors * Vector<T>::BYTES;
}

/// Zeros, where it is outside of the row or beyond the last one.
template <typename T> __device__ __forceinline__ void fetch(char* to, const T* from, bool inside) {
    const unsigned int shared = (unsigned int)__cvta_generic_to_shared(to);
    if constexpr (Vector<T>::BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(inside ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(from), "r"(inside ? 8 : 0) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_the_oldest() { asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory"); }
__device__ __forceinline__ void fetched_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// --8<-- [end:ring]

// --8<-- [start:sums]
/// The sums over a block's threads, in each of them: in each warp, then over the warps. `half` alternates: a thread may
/// still read the other half.
template <int COUNT> __device__ __forceinline__ void sum_over_block(float (&value)[COUNT], int half) {
    __shared__ float partial[2][COUNT][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
        for (int c = 0; c < COUNT; c++) value[c] += __shfl_xor_sync(0xffffffffu, value[c], step);
    if constexpr (WARPS > 1) {
        if (lane == 0)
#pragma unroll
            for (int c = 0; c < COUNT; c++) partial[half][c][warp] = value[c];
        __syncthreads();
        const int other = lane % NEXT_POWER;
#pragma unroll
        for (int c = 0; c < COUNT; c++) value[c] = other < WARPS ? partial[half][c][other] : 0.0f;
#pragma unroll
        for (int step = NEXT_POWER / 2; step > 0; step /= 2)
#pragma unroll
            for (int c = 0; c < COUNT; c++) value[c] += __shfl_xor_sync(0xffffffffu, value[c], step);
    }
}
// --8<-- [end:sums]

// --8<-- [start:slices]
// A row that is more than one block has: each block has a slice of it, and leaves two numbers about its slice where the
// others look. They are one word of 64 bits, which arrives as a whole and is never 0, as memory is before. Whoever has
// waited for long computes what is missing itself, to the same bits: a block may wait for one that has not begun, and
// where few multiprocessors are free that one will not.
__device__ __forceinline__ unsigned int sealed(float value) {
    const unsigned int bits = __float_as_uint(value);
    return ~(bits == 0xffffffffu ? 0x7fffffffu : bits);
}
__device__ __forceinline__ void publish(unsigned long long* at, float first, float second) {
    const unsigned long long word = (unsigned long long)sealed(second) << 32 | sealed(first);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ __forceinline__ unsigned long long look(const unsigned long long* at) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}

/// By a warp, with a slice for each lane: its two numbers. Returns the first slice that is missing, or -1.
__device__ __forceinline__ int look_at_all(
    const unsigned long long* words, int slices, int patience, float& first, float& second
) {
    const int lane = threadIdx.x % 32;
    unsigned long long word = 0;
    for (int tries = 0; lane < slices && (word = look(words + lane)) == 0 && tries < patience; tries++) __nanosleep(100);
    first = __uint_as_float(~(unsigned int)word), second = __uint_as_float(~(unsigned int)(word >> 32));
    const unsigned int missing = __ballot_sync(0xffffffffu, lane < slices && word == 0);
    return missing ? __ffs(missing) - 1 : -1;
}

__device__ __forceinline__ float sum_over_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// --8<-- [end:slices]

// --8<-- [start:gelu]
__device__ __forceinline__ float power_of_2(float x) {  // one instruction, good to 2 units in the last place
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
__device__ __forceinline__ float inverse_root(float x) {
    float root;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

/// The normal distribution. FINE: with erf, to the last bits of fp32, in 20 instructions and more. Else 10, within 5e-5
/// of itself down to z = -5.6, and smaller than 1e-8 below: a tenth of what rounding to fp16 may change.
__device__ __forceinline__ float phi(float z) {
    if constexpr (FINE) return 0.5f + 0.5f * erff(z * 0.7071067811865476f);
    const float a = fabsf(z);
    float tail = (-9.86943458e-07f * a + 4.18377984e-05f) * a - 0.000751156694f;  // log2(1 - Phi(a)), a smooth curve
    tail = ((tail * a + 0.00770502842f) * a - 0.0521196928f) * a - 0.460477561f;
    tail = power_of_2((tail * a - 1.15041583f) * a - 1.00005429f);
    return fabsf((z > 0.0f ? 1.0f : 0.0f) - tail);
}

/// s = (1 + tanh(u)) / 2 with GELU's u = sqrt(2 / pi) * (z + 0.044715 z^3), as 1 / (1 + exp(-2u)); and 1 - s, as
/// exp(-2u) * s: nothing cancels. A root squared is two instructions.
__device__ __forceinline__ float sigmoid(float z, float& rest) {
    const float e = power_of_2(z * (z * z * -0.10294323958f - 2.30220819814f));
    const float root = inverse_root(1.0f + e), s = root * root;
    rest = fminf(e, 1e38f) * s;  // where exp overflows, s is 0
    return s;
}

__device__ __forceinline__ float gelu(float z) {
    float rest;
    return z * (TANH ? sigmoid(z, rest) : phi(z));
}

/// The derivative of gelu. For the exact one Phi(z) + z * density(z), as the density times a polynomial in |z| where
/// z < 0, and as 1 less that where z > 0, within 2e-5.
__device__ __forceinline__ float slope(float z) {
    if constexpr (TANH) {
        float rest;
        const float s = sigmoid(z, rest);
        return s * (1.0f + rest * z * (z * z * 0.214064448798f + 1.59576912161f));
    }
    const float bell = power_of_2(z * z * -0.7213475204444817f);  // exp(-z^2 / 2)
    if constexpr (FINE) return phi(z) + z * 0.3989422804014327f * bell;
    const float a = fminf(fabsf(z), 16.0f);  // beyond, the bell is 0
    float left = ((0.000704356207f * a - 0.00804296609f) * a + 0.039675656f) * a - 0.116946039f;
    left = (((left * a + 0.244426797f) * a - 0.797152625f) * a + 0.499984345f) * bell;
    return z > 0.0f ? 1.0f - left : left;
}
// --8<-- [end:gelu]

/// What a block has of the columns: the first one, how many, and a thread's own.
struct Columns {
    int first, count;
    __device__ __forceinline__ int of(int vector) const { return (vector * THREADS + threadIdx.x) * VECTOR; }
    __device__ __forceinline__ bool has(int vector) const { return FULL || of(vector) < count; }
};

// --8<-- [start:forward]
/// The mean of each row, and the sum of the squared distances from it, which take the numbers' place. Two looks at what
/// is in registers by then. Sums of equal numbers are not rounded where EXACT; else the mean is corrected by that of the
/// distances from it. Either way it is exact for equal numbers: their distances are 0.
__device__ __forceinline__ void centered(
    float (&x)[ROWS][VECTORS][VECTOR], const Columns& columns, float (&mean)[ROWS], float (&squares)[ROWS]
) {
    const float count = columns.count * 0x1p-16f, inverse = 1.0f / count;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float parts[2] = {0.0f, 0.0f};
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
#pragma unroll
            for (int n = 0; n < VECTOR; n++) parts[n % 2] += x[r][v][n] * 0x1p-16f;  // none leaves the range of fp32
        mean[r] = parts[0] + parts[1];
    }
    sum_over_block(mean, 0);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float total = mean[r];
        mean[r] = total * inverse;
        if constexpr (EXACT) mean[r] = fmaf(fmaf(-mean[r], count, total), inverse, mean[r]);  // a quotient's last bits
    }
    if constexpr (!EXACT) {
        float rest[ROWS];
        const float share = 1.0f / columns.count;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            rest[r] = 0.0f;
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
                if (columns.has(v))
#pragma unroll
                    for (int n = 0; n < VECTOR; n++) rest[r] += (x[r][v][n] - mean[r]) * share;
        }
        __syncthreads();  // a thread may still read the half
        sum_over_block(rest, 0);
#pragma unroll
        for (int r = 0; r < ROWS; r++) mean[r] += rest[r];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float parts[2] = {0.0f, 0.0f};
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (columns.has(v))
#pragma unroll
                for (int n = 0; n < VECTOR; n++) {
                    x[r][v][n] -= mean[r];
                    parts[n % 2] += x[r][v][n] * x[r][v][n];
                }
        squares[r] = parts[0] + parts[1];
    }
    sum_over_block(squares, 1);
}

/// A row's mean and squares from those of its slices, by a warp. Equal means are not rounded.
__device__ __forceinline__ void combine(int slices, int width, int N, float& mean, float& squares) {
    const int lane = threadIdx.x % 32;
    const float share = lane < slices ? (float)min(width, N - lane * width) / N : 0.0f;
    const float base = __shfl_sync(0xffffffffu, mean, 0), own = lane < slices ? mean : base;
    mean = base + sum_over_warp(share * (own - base));
    const float distance = own - mean;
    squares = sum_over_warp((lane < slices ? squares : 0.0f) + share * N * distance * distance);
}

/// ROWS rows in registers while the next ones are on their way. Reads MN, writes MN.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layer_norm_gelu_forward(
    const X* __restrict__ x, const WEIGHT* __restrict__ weight, const BIAS* __restrict__ bias, Y* __restrict__ y,
    float* __restrict__ stats, unsigned long long* __restrict__ words, long long x_stride, long long M, int N, int width,
    double eps, int save
) {
    const int slices = SLICED ? (N + width - 1) / width : 1, slice = SLICED ? blockIdx.x % slices : 0;
    const long long step = gridDim.x / slices * (long long)ROWS;
    long long row = blockIdx.x / slices * (long long)ROWS;
    const auto columns_of = [=](int slice) { return Columns{slice * width, SLICED ? min(width, N - slice * width) : N}; };
    const Columns own = columns_of(slice);
    const auto fetch_rows = [=](int stage, long long row) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int v = 0; v < VECTORS; v++)
                    fetch(slot<X>(stage, r, v), x + (row + r) * x_stride + own.first + own.of(v), own.has(v) && row + r < M);
            fetched();
        }
    };
    for (int stage = 0; stage < STAGES; stage++) fetch_rows(stage, row + stage * step);
    Vector<WEIGHT> weights[VECTORS];
    Vector<BIAS> biases[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        weights[v].zero(), biases[v].zero();
        if constexpr (sizeof(WEIGHT) > 1) if (own.has(v)) weights[v].load(weight + own.first + own.of(v));
        if constexpr (sizeof(BIAS) > 1) if (own.has(v)) biases[v].load(bias + own.first + own.of(v));
    }
    for (int stage = 0; row < M; row += step, stage = stage + 1 < STAGES ? stage + 1 : 0) {
        float values[ROWS][VECTORS][VECTOR], mean[ROWS], squares[ROWS], shift[ROWS], rstd[ROWS];
        int now = slice, patience = PATIENCE;
        for (bool first = true;; first = false) {
            const Columns columns = columns_of(now);
            if (AHEAD && first) wait_for_the_oldest();
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    Vector<X> vector;
                    vector.zero();
                    if (AHEAD && first) vector.load(slot<X>(stage, r, v));
                    else if (columns.has(v) && row + r < M)
                        vector.load(x + (row + r) * x_stride + columns.first + columns.of(v));
#pragma unroll
                    for (int n = 0; n < VECTOR; n++) values[r][v][n] = vector[n];
                }
            centered(values, columns, mean, squares);
            if (first) fetch_rows(stage, row + STAGES * step);  // what was there has been read
            if constexpr (!SLICED) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    shift[r] = 0.0f;
                    rstd[r] = rsqrtf(squares[r] / N + (float)eps);
                }
                break;
            } else {
                __shared__ float found[ROWS][2];
                __shared__ int missing[ROWS];
                if (threadIdx.x == 0)
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        if (row + r < M) publish(words + (row + r) * slices + now, mean[r], squares[r]);
                for (int r = threadIdx.x / 32; r < ROWS; r += WARPS) {
                    float mean_of_row = 0.0f, squares_of_row = 0.0f;
                    missing[r] = -1;
                    if (row + r < M) {
                        missing[r] = look_at_all(words + (row + r) * slices, slices, patience, mean_of_row, squares_of_row);
                        combine(slices, width, N, mean_of_row, squares_of_row);
                    }
                    found[r][0] = mean_of_row, found[r][1] = squares_of_row;
                }
                __syncthreads();
                int next = -1;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    next = missing[r] < 0 ? next : missing[r];
                    squares[r] = found[r][1];
                    rstd[r] = rsqrtf(squares[r] / N + (float)eps);
                    shift[r] = (mean[r] - found[r][0]) * rstd[r];
                }
                if (next < 0 && now == slice) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) mean[r] = found[r][0];
                    break;
                }
                now = next < 0 ? slice : next;  // and in the end once more its own
                patience = 0;
                __syncthreads();
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (save && threadIdx.x == 0 && slice == 0 && row + r < M) {
                // marked, where all numbers are equal: the backward's x * rstd - mean * rstd would leave a rounding error
                stats[row + r] = mean[r];
                stats[M + row + r] = squares[r] == 0.0f && rstd[r] < __uint_as_float(0x7f800000u) ? -rstd[r] : rstd[r];
            }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float w[VECTOR], b[VECTOR];
            weights[v].keep(), biases[v].keep();
            of(weights[v], w, 1.0f), of(biases[v], b, 0.0f);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float out[VECTOR];
#pragma unroll
                for (int n = 0; n < VECTOR; n++) {
                    const float x_hat = SLICED ? fmaf(values[r][v][n], rstd[r], shift[r]) : values[r][v][n] * rstd[r];
                    out[n] = gelu(x_hat * w[n] + b[n]);
                }
                if (own.has(v) && row + r < M) store(y + (row + r) * N + own.first + own.of(v), out);
            }
        }
    }
    fetched_all();
}
// --8<-- [end:forward]

// --8<-- [start:backward]
// With x_hat = (x - mean) * rstd, dz = dy * gelu'(x_hat * weight + bias) and g = dz * weight:
//     dx      = rstd * (g - mean(g) - x_hat * mean(g * x_hat))    the means over the row
//     dweight = sum(dz * x_hat)                                   the sums over all rows
//     dbias   = sum(dz)
// z is computed again: to store it would be two tensors more to move, beside five. A block keeps its shares of dweight
// and dbias in registers. A second kernel adds the shares in a fixed order: no atomics, so both are bitwise the same in
// every run.

/// Reads 2MN, writes MN.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layer_norm_gelu_backward(
    const Y* __restrict__ dy, const X* __restrict__ x, const WEIGHT* __restrict__ weight, const BIAS* __restrict__ bias,
    const float* __restrict__ stats, unsigned long long* __restrict__ words, X* __restrict__ dx,
    float* __restrict__ shares, long long dy_stride, long long x_stride, long long M, int N, int width
) {
    const int slices = SLICED ? (N + width - 1) / width : 1, slice = SLICED ? blockIdx.x % slices : 0;
    const int group = blockIdx.x / slices;
    const long long step = gridDim.x / slices * (long long)ROWS;
    long long row = group * (long long)ROWS;
    const auto columns_of = [=](int slice) { return Columns{slice * width, SLICED ? min(width, N - slice * width) : N}; };
    const Columns own = columns_of(slice);
    char* const second = (char*)ring + STAGES * ROWS * VECTORS * THREADS * Vector<X>::BYTES;  // dy's part of the ring
    const auto slot_of_dy = [=](int stage, int r, int v) { return second + (slot<Y>(stage, r, v) - (char*)ring); };
    const auto fetch_rows = [=](int stage, long long row) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    const bool inside = own.has(v) && row + r < M;
                    fetch(slot<X>(stage, r, v), x + (row + r) * x_stride + own.first + own.of(v), inside);
                    fetch(slot_of_dy(stage, r, v), dy + (row + r) * dy_stride + own.first + own.of(v), inside);
                }
            fetched();
        }
    };
    for (int stage = 0; stage < STAGES; stage++) fetch_rows(stage, row + stage * step);
    float dweight[VECTORS][VECTOR] = {}, dbias[VECTORS][VECTOR] = {};
    Vector<WEIGHT> weights[VECTORS];
    Vector<BIAS> biases[VECTORS];
    const auto load_parameters = [&](const Columns& columns) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            weights[v].zero(), biases[v].zero();
            if constexpr (sizeof(WEIGHT) > 1)
                if (columns.has(v)) weights[v].load(weight + columns.first + columns.of(v));
            if constexpr (sizeof(BIAS) > 1)
                if (columns.has(v)) biases[v].load(bias + columns.first + columns.of(v));
        }
    };
    load_parameters(own);
    float mean[ROWS], marked[ROWS];  // of the rows to come
    const auto read_stats = [&](long long row) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mean[r] = row + r < M ? stats[row + r] : 0.0f;
            marked[r] = row + r < M ? stats[M + row + r] : 0.0f;
        }
    };
    read_stats(row);
    for (int stage = 0, half = 0; row < M; row += step, stage = stage + 1 < STAGES ? stage + 1 : 0, half ^= 1) {
        float x_hat[ROWS][VECTORS][VECTOR], dz[ROWS][VECTORS][VECTOR], sums[2 * ROWS], scale[ROWS], offset[ROWS], rstd[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            scale[r] = marked[r] < 0.0f ? 0.0f : marked[r];
            offset[r] = -mean[r] * scale[r];
            rstd[r] = fabsf(marked[r]);
        }
        read_stats(row + step);
        int now = slice, patience = PATIENCE;
        for (bool first = true;; first = false) {
            const Columns columns = columns_of(now);
            if (AHEAD && first) wait_for_the_oldest();
#pragma unroll
            for (int r = 0; r < 2 * ROWS; r++) sums[r] = 0.0f;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                float w[VECTOR], b[VECTOR];
                weights[v].keep(), biases[v].keep();
                of(weights[v], w, 1.0f), of(biases[v], b, 0.0f);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    Vector<X> xs;
                    Vector<Y> dys;
                    xs.zero(), dys.zero();
                    if (AHEAD && first) {
                        xs.load(slot<X>(stage, r, v)), dys.load(slot_of_dy(stage, r, v));
                    } else if (columns.has(v) && row + r < M) {
                        xs.load(x + (row + r) * x_stride + columns.first + columns.of(v));
                        dys.load(dy + (row + r) * dy_stride + columns.first + columns.of(v));
                    }
#pragma unroll
                    for (int n = 0; n < VECTOR; n++) {
                        const float hat = fmaf(xs[n], scale[r], offset[r]);
                        const float d = dys[n] * slope(hat * w[n] + b[n]);
                        sums[2 * r] += d * w[n];
                        sums[2 * r + 1] += d * w[n] * hat;
                        x_hat[r][v][n] = hat, dz[r][v][n] = d;
                    }
                }
            }
            sum_over_block(sums, half);
            if (first) fetch_rows(stage, row + STAGES * step);
            if constexpr (!SLICED) {
                break;
            } else {
                __shared__ float found[2 * ROWS];
                __shared__ int missing[ROWS];
                if (threadIdx.x == 0)
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        if (row + r < M) publish(words + (row + r) * slices + now, sums[2 * r], sums[2 * r + 1]);
                for (int r = threadIdx.x / 32; r < ROWS; r += WARPS) {
                    float of_g = 0.0f, of_products = 0.0f;
                    missing[r] = -1;
                    if (row + r < M) {
                        missing[r] = look_at_all(words + (row + r) * slices, slices, patience, of_g, of_products);
                        of_g = sum_over_warp(threadIdx.x % 32 < slices ? of_g : 0.0f);
                        of_products = sum_over_warp(threadIdx.x % 32 < slices ? of_products : 0.0f);
                    }
                    found[2 * r] = of_g, found[2 * r + 1] = of_products;
                }
                __syncthreads();
                int next = -1;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    next = missing[r] < 0 ? next : missing[r];
                    sums[2 * r] = found[2 * r], sums[2 * r + 1] = found[2 * r + 1];
                }
                if (next < 0 && now == slice) break;
                now = next < 0 ? slice : next;
                patience = 0;
                load_parameters(columns_of(now));
                __syncthreads();
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[2 * r] *= -rstd[r] / N, sums[2 * r + 1] *= -rstd[r] / N;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float w[VECTOR];
            weights[v].keep();
            of(weights[v], w, 1.0f);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float out[VECTOR];
#pragma unroll
                for (int n = 0; n < VECTOR; n++) {
                    const float hat = x_hat[r][v][n], d = dz[r][v][n];
                    if constexpr (PARAMETERS && sizeof(WEIGHT) > 1) dweight[v][n] += d * hat;
                    if constexpr (PARAMETERS && sizeof(BIAS) > 1) dbias[v][n] += d;
                    out[n] = d * w[n] * rstd[r] + (hat * sums[2 * r + 1] + sums[2 * r]);
                }
                if (own.has(v) && row + r < M) store(dx + (row + r) * N + own.first + own.of(v), out);
            }
        }
    }
    fetched_all();
    if constexpr (PARAMETERS) {
        float* share = shares + group * 2ll * N + own.first;
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (own.has(v)) {
                if constexpr (sizeof(WEIGHT) > 1) store(share + own.of(v), dweight[v]);
                if constexpr (sizeof(BIAS) > 1) store(share + N + own.of(v), dbias[v]);
            }
    }
}
// --8<-- [end:backward]

// --8<-- [start:shares]
__device__ __forceinline__ void store_one(float* to, float value) { *to = value; }
__device__ __forceinline__ void store_one(none*, float) {}
template <typename T> __device__ __forceinline__ void store_one(T* to, float value) { to->bits = pair(value, 0.0f, T()); }

/// dweight and dbias: the sums of P blocks' shares. 32 columns a block, and a warp takes every 16th share.
extern "C" __global__ void __launch_bounds__(512)
layer_norm_gelu_sum(const float* __restrict__ shares, WEIGHT* __restrict__ dweight, BIAS* __restrict__ dbias, int P, int N) {
    __shared__ float partial[16][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, which = blockIdx.x % 2;
    const int column = blockIdx.x / 2 * 32 + lane;
    if (sizeof(WEIGHT) == 1 && which == 0 || sizeof(BIAS) == 1 && which == 1) return;
    float total = 0.0f;
    if (column < N)
#pragma unroll 8
        for (int p = warp; p < P; p += 16) total += shares[(2ll * p + which) * N + column];
    partial[warp][lane] = total;
    __syncthreads();
    if (warp > 0 || column >= N) return;
    for (int other = 1; other < 16; other++) total += partial[other][lane];
    if (which == 0) store_one(dweight + column, total);
    else store_one(dbias + column, total);
}
// --8<-- [end:shares]
