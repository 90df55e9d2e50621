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
#ifndef VECTOR
#define VECTOR 8  // neighbouring elements that a thread has: 16 bytes of the widest dtype, or 1
#endif
#ifndef VECTORS
#define VECTORS 2  // that a thread has of a row
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef ROWS
#define ROWS 1  // that a block has at once
#endif
#ifndef STAGES
#define STAGES 2  // how many times these are in shared memory, or on their way there; 0: read where they are needed
#endif
#ifndef HELD
#define HELD 0  // 1: what a thread has of them stays in registers while the sums are made
#endif
#ifndef KEPT
#define KEPT 1  // 1: a thread's weight and bias stay in registers
#endif
#ifndef BLOCKS
#define BLOCKS 2  // at least, on a multiprocessor: what registers must leave room for
#endif
#ifndef FULL
#define FULL 1  // the row, or each slice of it, has a number for every thread
#endif
#ifndef SLICED
#define SLICED 0  // 1: a row is more than one block has
#endif
#ifndef LAG
#define LAG 0  // where it is: how many steps later the others are expected to have done their part
#endif
#ifndef PARAMETERS
#define PARAMETERS 1  // 0: dx alone is asked for
#endif
#ifndef STREAM
#define STREAM 0  // 1: y and dx leave the L2 cache first
#endif

constexpr int WARPS = THREADS / 32, PATIENCE = 100;
constexpr bool AHEAD = STAGES > 0;

struct bf16 { unsigned short bits; };
struct fp16 { unsigned short bits; };
struct none {};  // of a parameter that there is not

// --8<-- [start:instructions]
// What C++ has no name for, or takes more instructions for.
__device__ __forceinline__ float from_fp16(unsigned int word) {  // of the lower half
    float value;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(word));
    return value;
}
__device__ __forceinline__ unsigned int pair_of_fp16(float low, float high) {
    unsigned int word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
__device__ __forceinline__ unsigned int pair_of_bf16(float low, float high) {
    unsigned int word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
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
/// sum += A B, on tensor cores, of a warp's 16 x 16 and 16 x 8 numbers, each lane with a part of all three.
__device__ __forceinline__ void add_product(
    float (&sum)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, bf16
) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void add_product(
    float (&sum)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, fp16
) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// The compiler may not compute ahead what comes of a word: it is not worth a register until the next row.
__device__ __forceinline__ void kept(unsigned int& word) { asm volatile("" : "+r"(word)); }

/// BYTES on their way to shared memory, past the registers; zeros, if not `inside`. A group of them, and all but the
/// newest groups.
template <int BYTES> __device__ __forceinline__ void copy(void* to, const void* from, bool inside) {
    const unsigned int shared = (unsigned int)__cvta_generic_to_shared(to);
    const int bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int NEWEST> __device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(NEWEST) : "memory");
}

/// A word that arrives as a whole, and in no order with others.
__device__ __forceinline__ void publish(unsigned long long* at, unsigned long long word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ __forceinline__ unsigned long long look(const unsigned long long* at) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
// --8<-- [end:instructions]

// --8<-- [start:memory]
__device__ __forceinline__ float low(unsigned int word, bf16) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high(unsigned int word, bf16) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ float low(unsigned int word, fp16) { return from_fp16(word); }
__device__ __forceinline__ float high(unsigned int word, fp16) { return from_fp16(word >> 16); }
__device__ __forceinline__ unsigned int pair(float low, float high, bf16) { return pair_of_bf16(low, high); }
__device__ __forceinline__ unsigned int pair(float low, float high, fp16) { return pair_of_fp16(low, high); }

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
    __device__ __forceinline__ void keep() {
#pragma unroll
        for (int w = 0; w < WORDS; w++) kept(word[w]);
    }
};
template <> struct Vector<none> {
    __device__ __forceinline__ void load(const void*) {}
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
// nobody: cp.async, which all GPUs have from the A100 on.
extern __shared__ uint4 ring[];

template <typename T> __device__ __forceinline__ char* slot(int stage, int row, int vector) {
    return (char*)ring + (((stage * ROWS + row) * VECTORS + vector) * THREADS + threadIdx.x) * Vector<T>::BYTES;
}

/// What a block has of the columns: the first one, how many, and a thread's own.
struct Columns {
    int first, count;
    __device__ __forceinline__ int of(int vector) const { return (vector * THREADS + threadIdx.x) * VECTOR; }
    __device__ __forceinline__ bool has(int vector) const { return FULL || of(vector) < count; }
};

/// A vector of a row from where it lies; zeros beyond its end.
template <typename T> __device__ __forceinline__ Vector<T> vector_of(const T* row, const Columns& columns, int v, bool inside) {
    Vector<T> vector;
    vector.zero();
    if (inside && columns.has(v)) vector.load(row + columns.first + columns.of(v));
    return vector;
}
// --8<-- [end:ring]

// --8<-- [start:sums]
// Two numbers for each of ROWS rows, summed over a block. In a warp, lanes take over each other's numbers on the way: in
// the end a lane has the sums of those whose index is its own, modulo GROUP.
constexpr int VALUES = 2 * ROWS, GROUP = VALUES < 4 ? VALUES : 4, GROUPS = VALUES / GROUP;

__device__ __forceinline__ float from(float value, int step) { return __shfl_xor_sync(0xffffffffu, value, step); }

__device__ __forceinline__ void sum_over_warp(const float (&value)[VALUES], float (&sum)[GROUPS]) {
    const bool odd = threadIdx.x & 1, late = threadIdx.x & 2;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float even_one = value[g * GROUP], odd_one = value[g * GROUP + 1];
        if constexpr (GROUP == 4) {
            const float third = value[g * GROUP + GROUP - 2], fourth = value[g * GROUP + GROUP - 1];
            even_one = (late ? third : even_one) + from(late ? even_one : third, 2);
            odd_one = (late ? fourth : odd_one) + from(late ? odd_one : fourth, 2);
        }
        sum[g] = (odd ? odd_one : even_one) + from(odd ? even_one : odd_one, 1);
#pragma unroll
        for (int step = GROUP; step < 32; step *= 2) sum[g] += from(sum[g], step);
    }
}

/// Across warps: each leaves its sums, all wait, and each adds them up. `half` alternates: a warp may still read what
/// was left before.
__shared__ float left[2][WARPS][VALUES];

__device__ __forceinline__ void leave(const float (&sum)[GROUPS], int half) {
    const int lane = threadIdx.x % 32;
    if (lane < GROUP)
#pragma unroll
        for (int g = 0; g < GROUPS; g++) left[half][threadIdx.x / 32][g * GROUP + lane] = sum[g];
}
__device__ __forceinline__ void collect(float (&value)[VALUES], int half) {
    constexpr int AT_ONCE = 32 / GROUP;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp += AT_ONCE) {
            const int mine = warp + lane / GROUP;
            if (WARPS % AT_ONCE == 0 || mine < WARPS) sum += left[half][mine][g * GROUP + lane % GROUP];
        }
#pragma unroll
        for (int step = GROUP; step < 32; step *= 2) sum += from(sum, step);
#pragma unroll
        for (int c = 0; c < GROUP; c++) value[g * GROUP + c] = __shfl_sync(0xffffffffu, sum, c);
    }
}
// --8<-- [end:sums]

// --8<-- [start:slices]
// A row that is more than one block has: each block has a slice of it, and leaves two numbers about its slice where the
// others look LAG steps later. They are one word of 64 bits, which arrives as a whole and is never 0, as memory is
// before. Whoever has waited for long computes what is missing itself, to the same bits: a block may wait for one that
// has not begun, and where few multiprocessors are free that one will not.
__device__ __forceinline__ unsigned int sealed(float value) {
    const unsigned int bits = __float_as_uint(value);
    return ~(bits == 0xffffffffu ? 0x7fffffffu : bits);
}
__device__ __forceinline__ void publish(unsigned long long* at, float first, float second) {
    publish(at, (unsigned long long)sealed(second) << 32 | sealed(first));
}

/// By a warp, with a slice for each lane: its two numbers. Returns the first slice that is missing, or -1.
__device__ __forceinline__ int look_at_all(
    const unsigned long long* words, int slices, int patience, float& first, float& second
) {
    const int lane = threadIdx.x % 32;
    unsigned long long word = 0;
    for (int tries = 0; lane < slices && (word = look(words + lane)) == 0 && tries < patience; tries++) __nanosleep(50);
    first = __uint_as_float(~(unsigned int)word), second = __uint_as_float(~(unsigned int)(word >> 32));
    const unsigned int missing = __ballot_sync(0xffffffffu, lane < slices && word == 0);
    return missing ? __ffs(missing) - 1 : -1;
}
__device__ __forceinline__ float sum_over_lanes(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += from(value, step);
    return value;
}

/// What all threads of a block know of the rows whose slices one warp has looked at.
struct Found {
    float first[ROWS], second[ROWS];
    int missing;
};
// --8<-- [end:slices]

// --8<-- [start:gelu]
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
    left = ((left * a + 0.244426797f) * a - 0.797152625f) * a + 0.499984345f;
    const float half = 0.5f - left * bell;
    return 0.5f + __uint_as_float(__float_as_uint(half) ^ (__float_as_uint(z) & 0x80000000u));
}
// --8<-- [end:gelu]

// --8<-- [start:statistics]
/// What tensor cores give of 16-bit numbers: their sum, 2^-14 of it so that none leaves the range of fp32, and
/// the sum of their squares. Products of 8 numbers a lane take three instructions. A warp's numbers are a matrix A of 16
/// rows, in any order. Each column of A times a column of ones has sums. A times its own transpose has the sums of squares
/// in its diagonal: of the upper 8 rows, then of the lower ones.
template <typename T, typename Read> __device__ __forceinline__ void sums_by_products(Read read, float (&sum)[GROUPS]) {
    const int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    const unsigned int unit = pair(0x1p-14f, 0x1p-14f, T());
    float values[VALUES];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sums[4] = {}, upper[4] = {}, lower[4] = {};
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const Vector<T> a = read(r, v);
            add_product(sums, a.word, unit, unit, T());
            add_product(upper, a.word, a.word[0], a.word[2], T());
            add_product(lower, a.word, a.word[1], a.word[3], T());
        }
        const float diagonal = group % 2 ? upper[1] + lower[3] : upper[0] + lower[2];
        values[2 * r] = sums[0] + sums[2];
        values[2 * r + 1] = __shfl_sync(0xffffffffu, diagonal, group * 4 + group / 2);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {  // now all four lanes of a group have the same
        sum[g] = place % 2 ? values[g * GROUP + 1] : values[g * GROUP];
        if constexpr (GROUP == 4) {
            const float late = place % 2 ? values[g * GROUP + GROUP - 1] : values[g * GROUP + GROUP - 2];
            sum[g] = place / 2 ? late : sum[g];
        }
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum[g] += from(sum[g], step);
    }
}

/// The mean of each row of a slice, and the sum of the squared distances from it. First from the sums of the numbers and
/// of their squares; that leaves too few digits where the mean is large beside the spread, and then another look at the
/// row counts from that mean. A row of equal numbers ends with a sum of 0. `meanwhile` comes before a wait.
template <typename Read, typename Meanwhile> __device__ __forceinline__ void statistics(
    Read read, const Columns& columns, int& half, float (&mean)[ROWS], float (&squares)[ROWS], Meanwhile meanwhile
) {
    constexpr bool PRODUCTS = sizeof(X) == 2 && VECTOR == 8;
    constexpr float DIGITS = sizeof(X) == 2 ? 1.0f / 16 : 0.5f;
    const float share = 1.0f / columns.count;
    bool done[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) mean[r] = 0.0f;
    for (int turn = 0; turn < 4; turn++) {
        float value[VALUES], sum[GROUPS];
        if (PRODUCTS && turn == 0) {
            if constexpr (PRODUCTS) sums_by_products<X>(read, sum);
        } else {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                value[2 * r] = value[2 * r + 1] = 0.0f;
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    const Vector<X> vector = read(r, v);
                    if (columns.has(v))
#pragma unroll
                        for (int n = 0; n < VECTOR; n++) {
                            const float distance = vector[n] - mean[r];
                            value[2 * r] += distance * 0x1p-14f;
                            value[2 * r + 1] += distance * distance;
                        }
                }
            }
            sum_over_warp(value, sum);
        }
        leave(sum, half);
        if (turn == 0) meanwhile();
        __syncthreads();
        collect(value, half);
        half ^= 1;
        bool all = true;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float moved = value[2 * r] * (share * 0x1p14f), total = value[2 * r + 1];
            const float rest = total < __uint_as_float(0x7f800000u) ? total - moved * moved * columns.count : total;
            if (!done[r]) mean[r] += moved, squares[r] = fmaxf(rest, total * 0.0f);
            done[r] = done[r] || rest > total * (turn == 0 ? DIGITS : 0.5f) || total == 0.0f;
            all = all && done[r];
        }
        if (all) return;
    }
}
// --8<-- [end:statistics]

// --8<-- [start:forward]
/// A row's mean and squares from those of its slices, by a warp. Equal means are not rounded.
__device__ __forceinline__ void combine(int slices, int width, int N, float& mean, float& squares) {
    const int lane = threadIdx.x % 32;
    const float share = lane < slices ? (float)min(width, N - lane * width) / N : 0.0f;
    const float base = __shfl_sync(0xffffffffu, mean, 0), own = lane < slices ? mean : base;
    mean = base + sum_over_lanes(share * (own - base));
    const float distance = own - mean;
    squares = sum_over_lanes((lane < slices ? squares : 0.0f) + share * N * distance * distance);
}

/// ROWS rows at a time while the next ones are on their way. Reads MN, writes MN.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layer_norm_gelu_forward(
    const X* __restrict__ x, const WEIGHT* __restrict__ weight, const BIAS* __restrict__ bias, Y* __restrict__ y,
    float* __restrict__ stats, unsigned long long* __restrict__ words, long long x_stride, long long M, int N,
    int width, double eps, int save
) {
    const int slices = SLICED ? (N + width - 1) / width : 1, slice = SLICED ? blockIdx.x % slices : 0;
    const long long step = gridDim.x / slices * (long long)ROWS, begin = blockIdx.x / slices * (long long)ROWS;
    const auto columns_of = [=](int slice) {
        return Columns{slice * width, SLICED ? min(width, N - slice * width) : N};
    };
    const Columns own = columns_of(slice);
    const auto fetch = [=](int stage, long long row) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const X* from = x + (row + r) * x_stride + own.first + own.of(0);
#pragma unroll
                for (int v = 0; v < VECTORS; v++)
                    copy<Vector<X>::BYTES>(slot<X>(stage, r, v), from + v * THREADS * VECTOR, own.has(v) && row + r < M);
            }
            end_of_group();
        }
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) fetch(stage, begin + stage * step);
    Vector<WEIGHT> weights[VECTORS];
    Vector<BIAS> biases[VECTORS];
    if constexpr (KEPT)
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            weights[v] = vector_of(weight, own, v, true), biases[v] = vector_of(bias, own, v, true);
    const float share = 1.0f / N;
    __shared__ Found found[2];
    int stage = 0, oldest = 0, half = 0, other = 0;
    for (long long row = begin; row - LAG * step < M; row += step) {
        const long long due = row - LAG * step;  // rows of which a block knows all now
        float mean[ROWS], squares[ROWS];
        Vector<X> held[HELD ? ROWS : 1][HELD ? VECTORS : 1];
        const auto look = [&](int patience) {
            if constexpr (SLICED)
                if (due >= 0 && threadIdx.x < 32) {
                    int missing = -1;
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        if (due + r < M) {
                            float first, second;
                            const auto at = words + (due + r) * slices;
                            missing = max(missing, look_at_all(at, slices, patience, first, second));
                            combine(slices, width, N, first, second);
                            found[other].first[r] = first, found[other].second[r] = second;
                        }
                    found[other].missing = missing;
                }
        };
        const auto publish_all = [&](long long row, int slice) {
            if (threadIdx.x == 0)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    if (row + r < M) publish(words + (row + r) * slices + slice, mean[r], squares[r]);
        };
        if (!SLICED || row < M) {
            if constexpr (AHEAD) wait_for_all_but<AHEAD ? STAGES - 1 - LAG : 0>();
            const auto from_memory = [&](int r, int v) {
                if constexpr (AHEAD) {
                    Vector<X> vector;
                    vector.load(slot<X>(stage, r, v));
                    return vector;
                } else {
                    return vector_of(x + (row + r) * x_stride, own, v, row + r < M);
                }
            };
            if constexpr (HELD) {
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int v = 0; v < VECTORS; v++) held[r][v] = from_memory(r, v);
                statistics([&](int r, int v) { return held[r][v]; }, own, half, mean, squares, [&] { look(PATIENCE); });
            } else {
                statistics(from_memory, own, half, mean, squares, [&] { look(PATIENCE); });
            }
            if constexpr (SLICED) publish_all(row, slice);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
        } else {
            look(PATIENCE);
            __syncthreads();
        }
        if (SLICED && due < 0) continue;
        if constexpr (SLICED) {
            while (found[other].missing >= 0) {
                const int missing = found[other].missing;
                const Columns columns = columns_of(missing);
                const auto far = [&](int r, int v) { return vector_of(x + (due + r) * x_stride, columns, v, due + r < M); };
                statistics(far, columns, half, mean, squares, [] {});
                publish_all(due, missing);
                __syncthreads();
                look(0);
                __syncthreads();
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) mean[r] = found[other].first[r], squares[r] = found[other].second[r];
            other ^= 1;
        }
        float scale[ROWS], offset[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float rstd = rsqrtf(squares[r] * share + (float)eps);
            // A row of equal numbers: x * rstd - mean * rstd would leave a rounding error. With eps = 0 it is NaN.
            const bool equal = squares[r] == 0.0f && rstd < __uint_as_float(0x7f800000u);
            scale[r] = equal ? 0.0f : rstd;
            offset[r] = -mean[r] * scale[r];
            if (save && threadIdx.x == 0 && slice == 0 && due + r < M) {
                stats[due + r] = mean[r];
                stats[M + due + r] = equal ? -rstd : rstd;  // marked, for the backward
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            float w[VECTOR], b[VECTOR];
            if constexpr (KEPT) {
                weights[v].keep(), biases[v].keep();
                of(weights[v], w, 1.0f), of(biases[v], b, 0.0f);
            } else {
                of(vector_of(weight, own, v, true), w, 1.0f), of(vector_of(bias, own, v, true), b, 0.0f);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                Vector<X> vector;
                if constexpr (HELD) vector = held[r][v];
                else if constexpr (AHEAD) vector.load(slot<X>(oldest, r, v));
                else vector = vector_of(x + (due + r) * x_stride, own, v, due + r < M);
                float out[VECTOR];
#pragma unroll
                for (int n = 0; n < VECTOR; n++) {
                    const float x_hat = sizeof(Y) == 4 ? (vector[n] - mean[r]) * scale[r] : fmaf(vector[n], scale[r], offset[r]);
                    out[n] = gelu(x_hat * w[n] + b[n]);
                }
                if (own.has(v) && due + r < M) store(y + (due + r) * N + own.first + own.of(v), out);
            }
        }
        fetch(oldest, due + STAGES * step);
        oldest = oldest + 1 < STAGES ? oldest + 1 : 0;
    }
    wait_for_all_but<0>();
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

/// g waits in shared memory for the row's means, behind the ring.
__device__ __forceinline__ float* place_of_g(int step, int row, int vector) {
    constexpr int RING = STAGES * ROWS * VECTORS * THREADS * (Vector<X>::BYTES + Vector<Y>::BYTES);
    constexpr int PART = VECTOR < 4 ? VECTOR : 4;
    return (float*)((char*)ring + RING) + ((step * ROWS + row) * VECTORS + vector) * THREADS * VECTOR + threadIdx.x * PART;
}
__device__ __forceinline__ void put(float* to, const float (&values)[VECTOR]) {
    if constexpr (VECTOR == 1) *to = values[0];
    else
#pragma unroll
        for (int n = 0; n < VECTOR; n += 4)
            *(float4*)(to + n * THREADS) = make_float4(values[n], values[n + 1], values[n + 2], values[n + 3]);
}
__device__ __forceinline__ void get(const float* from, float (&values)[VECTOR]) {
    if constexpr (VECTOR == 1) values[0] = *from;
    else
#pragma unroll
        for (int n = 0; n < VECTOR; n += 4) {
            const float4 four = *(const float4*)(from + n * THREADS);
            values[n] = four.x, values[n + 1] = four.y, values[n + 2] = four.z, values[n + 3] = four.w;
        }
}

/// Reads 2MN, writes MN.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layer_norm_gelu_backward(
    const Y* __restrict__ dy, const X* __restrict__ x, const WEIGHT* __restrict__ weight, const BIAS* __restrict__ bias,
    const float* __restrict__ stats, unsigned long long* __restrict__ words, X* __restrict__ dx,
    float* __restrict__ shares, long long dy_stride, long long x_stride, long long M, int N, int width
) {
    const int slices = SLICED ? (N + width - 1) / width : 1, slice = SLICED ? blockIdx.x % slices : 0;
    const int group = blockIdx.x / slices;
    const long long step = gridDim.x / slices * (long long)ROWS, begin = group * (long long)ROWS;
    const auto columns_of = [=](int slice) {
        return Columns{slice * width, SLICED ? min(width, N - slice * width) : N};
    };
    const Columns own = columns_of(slice);
    const auto slot_of_dy = [](int stage, int r, int v) {  // behind those of x
        return slot<Y>(stage, r, v) + STAGES * ROWS * VECTORS * THREADS * Vector<X>::BYTES;
    };
    const auto fetch = [=](int stage, long long row) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const X* from = x + (row + r) * x_stride + own.first + own.of(0);
                const Y* from_dy = dy + (row + r) * dy_stride + own.first + own.of(0);
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    const bool inside = own.has(v) && row + r < M;
                    copy<Vector<X>::BYTES>(slot<X>(stage, r, v), from + v * THREADS * VECTOR, inside);
                    copy<Vector<Y>::BYTES>(slot_of_dy(stage, r, v), from_dy + v * THREADS * VECTOR, inside);
                }
            }
            end_of_group();
        }
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) fetch(stage, begin + stage * step);
    float dweight[VECTORS][VECTOR] = {}, dbias[VECTORS][VECTOR] = {};
    Vector<WEIGHT> weights[VECTORS];
    Vector<BIAS> biases[VECTORS];
    if constexpr (KEPT)
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            weights[v] = vector_of(weight, own, v, true), biases[v] = vector_of(bias, own, v, true);
    float mean[ROWS], marked[ROWS];  // of the rows to come
    const auto read_stats = [=](long long row, float (&mean)[ROWS], float (&marked)[ROWS]) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool inside = row >= 0 && row + r < M;
            mean[r] = inside ? stats[row + r] : 0.0f;
            marked[r] = inside ? stats[M + row + r] : 0.0f;
        }
    };
    const auto scales_of = [](const float (&mean)[ROWS], const float (&marked)[ROWS], float (&scale)[ROWS], float (&offset)[ROWS]) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            scale[r] = marked[r] < 0.0f ? 0.0f : marked[r];
            offset[r] = -mean[r] * scale[r];
        }
    };
    read_stats(begin, mean, marked);
    __shared__ Found found[2];
    int stage = 0, oldest = 0, half = 0, other = 0, waiting = 0, next_due = 0;
    for (long long row = begin; row - LAG * step < M; row += step) {
        const long long due = row - LAG * step;
        float x_hat[HELD ? ROWS : 1][VECTORS][VECTOR], g[HELD ? ROWS : 1][VECTORS][VECTOR];
        float sums[VALUES], scale[ROWS], offset[ROWS], rstd[ROWS];
        float mean_due[ROWS], marked_due[ROWS];
        if constexpr (SLICED) read_stats(due, mean_due, marked_due);
        /// g of a vector, and its part of the sums; of its own rows also what comes to the shares.
        const auto part = [&](bool is_own, const Vector<X>& xs, const Vector<Y>& dys, const float (&w)[VECTOR],
                              const float (&b)[VECTOR], int r, int v, float (&hats)[VECTOR], float (&gs)[VECTOR]) {
#pragma unroll
            for (int n = 0; n < VECTOR; n++) {
                const float hat = fmaf(xs[n], scale[r], offset[r]);
                const float d = dys[n] * slope(hat * w[n] + b[n]);
                if (is_own && PARAMETERS && sizeof(WEIGHT) > 1) dweight[v][n] += d * hat;
                if (is_own && PARAMETERS && sizeof(BIAS) > 1) dbias[v][n] += d;
                hats[n] = hat, gs[n] = d * w[n];
                sums[2 * r] += gs[n];
                sums[2 * r + 1] += gs[n] * hat;
            }
        };
        const auto look = [&](int patience) {
            if constexpr (SLICED)
                if (due >= 0 && threadIdx.x < 32) {
                    int missing = -1;
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        if (due + r < M) {
                            float first, second;
                            const auto at = words + (due + r) * slices;
                            missing = max(missing, look_at_all(at, slices, patience, first, second));
                            const bool one = threadIdx.x < slices;
                            found[other].first[r] = sum_over_lanes(one ? first : 0.0f);
                            found[other].second[r] = sum_over_lanes(one ? second : 0.0f);
                        }
                    found[other].missing = missing;
                }
        };
        const auto sum = [&](bool meanwhile) {
            float sum[GROUPS];
            sum_over_warp(sums, sum);
            leave(sum, half);
            if (meanwhile) look(PATIENCE);
            __syncthreads();
            collect(sums, half);
            half ^= 1;
        };
        const auto publish_all = [&](long long row, int slice) {
            if (threadIdx.x == 0)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    if (row + r < M) publish(words + (row + r) * slices + slice, sums[2 * r], sums[2 * r + 1]);
        };
        if (!SLICED || row < M) {
            scales_of(mean, marked, scale, offset);
#pragma unroll
            for (int r = 0; r < ROWS; r++) rstd[r] = fabsf(marked[r]);
            read_stats(row + step, mean, marked);
            if constexpr (AHEAD) wait_for_all_but<AHEAD ? STAGES - 1 - LAG : 0>();
#pragma unroll
            for (int r = 0; r < VALUES; r++) sums[r] = 0.0f;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                float w[VECTOR], b[VECTOR];
                if constexpr (KEPT) {
                    weights[v].keep(), biases[v].keep();
                    of(weights[v], w, 1.0f), of(biases[v], b, 0.0f);
                } else {
                    of(vector_of(weight, own, v, true), w, 1.0f), of(vector_of(bias, own, v, true), b, 0.0f);
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    Vector<X> xs;
                    Vector<Y> dys;
                    if constexpr (AHEAD) {
                        xs.load(slot<X>(stage, r, v)), dys.load(slot_of_dy(stage, r, v));
                    } else {
                        xs = vector_of(x + (row + r) * x_stride, own, v, row + r < M);
                        dys = vector_of(dy + (row + r) * dy_stride, own, v, row + r < M);
                    }
                    if constexpr (HELD) {
                        part(true, xs, dys, w, b, r, v, x_hat[r][v], g[r][v]);
                    } else {
                        part(true, xs, dys, w, b, r, v, x_hat[0][v], g[0][v]);
                        put(place_of_g(waiting, r, v), g[0][v]);
                    }
                }
            }
            sum(true);
            if constexpr (SLICED) publish_all(row, slice);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            waiting = waiting < LAG ? waiting + 1 : 0;
        } else {
            look(PATIENCE);
            __syncthreads();
        }
        if (SLICED && due < 0) continue;
        if constexpr (SLICED) {
            scales_of(mean_due, marked_due, scale, offset);
            while (found[other].missing >= 0) {
                const int missing = found[other].missing;
                const Columns columns = columns_of(missing);
#pragma unroll
                for (int r = 0; r < VALUES; r++) sums[r] = 0.0f;
#pragma unroll
                for (int v = 0; v < VECTORS; v++) {
                    float w[VECTOR], b[VECTOR], hats[VECTOR], gs[VECTOR];
                    of(vector_of(weight, columns, v, true), w, 1.0f), of(vector_of(bias, columns, v, true), b, 0.0f);
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        const auto xs = vector_of(x + (due + r) * x_stride, columns, v, due + r < M);
                        const auto dys = vector_of(dy + (due + r) * dy_stride, columns, v, due + r < M);
                        part(false, xs, dys, w, b, r, v, hats, gs);
                    }
                }
                sum(false);
                publish_all(due, missing);
                __syncthreads();
                look(0);
                __syncthreads();
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                rstd[r] = fabsf(marked_due[r]);
                sums[2 * r] = found[other].first[r], sums[2 * r + 1] = found[other].second[r];
            }
            other ^= 1;
        }
        const float share = 1.0f / N;
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[2 * r] *= -rstd[r] * share, sums[2 * r + 1] *= -rstd[r] * share;
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float out[VECTOR];
                if constexpr (!HELD) {
                    Vector<X> xs;
                    if constexpr (AHEAD) xs.load(slot<X>(oldest, r, v));
                    else xs = vector_of(x + (due + r) * x_stride, own, v, due + r < M);
#pragma unroll
                    for (int n = 0; n < VECTOR; n++) x_hat[0][v][n] = fmaf(xs[n], scale[r], offset[r]);
                    get(place_of_g(next_due, r, v), g[0][v]);
                }
#pragma unroll
                for (int n = 0; n < VECTOR; n++) {
                    const int held = HELD ? r : 0;
                    out[n] = fmaf(g[held][v][n], rstd[r], fmaf(x_hat[held][v][n], sums[2 * r + 1], sums[2 * r]));
                }
                if (own.has(v) && due + r < M) store(dx + (due + r) * N + own.first + own.of(v), out);
            }
        next_due = next_due < LAG ? next_due + 1 : 0;
        fetch(oldest, due + STAGES * step);
        oldest = oldest + 1 < STAGES ? oldest + 1 : 0;
    }
    wait_for_all_but<0>();
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
