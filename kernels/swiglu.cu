// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The Ridgepoint authors
//
// SwiGLU and GeGLU in CUDA C++, forward and backward. swiglu_cuda.py beside it compiles and launches it; copy both.
//
//     y = silu(gate) * up    with silu(x) = x * sigmoid(x)
//     y = gelu(gate) * up    with gelu(x) = x * Phi(x), Phi the normal distribution function, or its tanh approximation
//
// Source: Shazeer, "GLU Variants Improve Transformer", 2020 (https://arxiv.org/abs/2002.05202).
//
// It includes nothing, so that NVRTC compiles it without a toolkit; with one, `nvcc -std=c++17 -arch=sm_90 -cubin
// swiglu.cu` does. What a compilation is for stands in macros, and -DGATE=float replaces one of them.

#ifndef GATE
#define GATE bf16  // or fp16, float: the dtypes of gate (and its gradient), of up (likewise), and of y and dy
#endif
#ifndef UP
#define UP bf16
#endif
#ifndef Y
#define Y bf16
#endif
#ifndef DY
#define DY bf16
#endif
#ifndef ACTIVATION
#define ACTIVATION SILU
#endif
#ifndef VECTOR
#define VECTOR 8  // neighbouring elements that a thread has: 16 bytes of the widest dtype, or 1
#endif
#ifndef VECTORS
#define VECTORS 1  // that a thread has
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef INDEX
#define INDEX unsigned int  // counts vectors where rows lie apart: long long, where there are 2^31 of them
#endif
#ifndef STREAM
#define STREAM 0  // 1: what is read, 2: what is written, 3: both leave the L2 cache first
#endif

enum { SILU, GELU, GELU_TANH };

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
__device__ __forceinline__ float inverse(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}
// --8<-- [end:instructions]

// --8<-- [start:memory]
struct bf16 { unsigned short bits; };
struct fp16 { unsigned short bits; };

__device__ __forceinline__ float low(unsigned int word, bf16) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high(unsigned int word, bf16) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ float low(unsigned int word, fp16) { return from_fp16(word); }
__device__ __forceinline__ float high(unsigned int word, fp16) { return from_fp16(word >> 16); }
__device__ __forceinline__ unsigned int pair(float low, float high, bf16) { return pair_of_bf16(low, high); }
__device__ __forceinline__ unsigned int pair(float low, float high, fp16) { return pair_of_fp16(low, high); }
__device__ __forceinline__ float one(const float* at) { return *at; }
__device__ __forceinline__ void one(float* at, float value) { *at = value; }
template <typename T> __device__ __forceinline__ float one(const T* at) { return low(at->bits, T()); }
template <typename T> __device__ __forceinline__ void one(T* at, float value) { at->bits = pair(value, 0.0f, T()); }

/// N neighbouring numbers. The address is a multiple of 16, or of all their bytes where these are 8.
template <int N, typename T> __device__ __forceinline__ void load(const T* from, float (&values)[N]) {
    if constexpr (N == 1) {
        values[0] = one(from);
    } else {
        constexpr int WORDS = N * sizeof(T) / 4;
        unsigned int word[WORDS];
        if constexpr (WORDS == 2) {
            const uint2 two = STREAM & 1 ? __ldcs((const uint2*)from) : *(const uint2*)from;
            word[0] = two.x, word[1] = two.y;
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4* at = (const uint4*)from + w / 4;
                const uint4 four = STREAM & 1 ? __ldcs(at) : *at;
                word[w] = four.x, word[w + 1] = four.y, word[w + 2] = four.z, word[w + 3] = four.w;
            }
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            if constexpr (sizeof(T) == 4) values[n] = __uint_as_float(word[n]);
            else values[n] = n % 2 ? high(word[n / 2], T()) : low(word[n / 2], T());
    }
}

template <int N, typename T> __device__ __forceinline__ void store(T* to, const float (&values)[N]) {
    if constexpr (N == 1) {
        one(to, values[0]);
    } else {
        constexpr int WORDS = N * sizeof(T) / 4;
        unsigned int word[WORDS];
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            if constexpr (sizeof(T) == 4) word[w] = __float_as_uint(values[w]);
            else word[w] = pair(values[2 * w], values[2 * w + 1], T());
        if constexpr (WORDS == 2) {
            const uint2 two = make_uint2(word[0], word[1]);
            STREAM & 2 ? __stcs((uint2*)to, two) : (void)(*(uint2*)to = two);
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 four = make_uint4(word[w], word[w + 1], word[w + 2], word[w + 3]);
                STREAM & 2 ? __stcs((uint4*)to + w / 4, four) : (void)(((uint4*)to)[w / 4] = four);
            }
        }
    }
}
// --8<-- [end:memory]

// --8<-- [start:activation]
/// Phi(-|x|) / exp(-x^2 / 2), fitted: off by 1e-7 at 0 and by 1e-6 at 13, where the exponential leaves fp32.
__device__ __forceinline__ float mills(float x) {
    const float t = inverse(1.0f + 0.25f * fabsf(x));
    float p = 0.3623279929161072f - 0.09568291902542114f * t;
    p = -0.31067103147506714f + p * t;
    p = 0.33054032921791077f + p * t;
    p = -0.00735325925052166f + p * t;
    p = 0.12418360263109207f + p * t;
    p = 0.09647118300199509f + p * t;
    return 0.00018415650993119925f + p * t;
}

/// f(x) = x * share(x), and its slope f'(x), which costs nothing where it is not used: the compiler drops it.
__device__ __forceinline__ float activate(float x, float& slope) {
    float share;
    if constexpr (ACTIVATION == GELU) {
        const float bell = power_of_2(x * x * -0.7213475204444817f);  // exp(-x^2 / 2)
        const float tail = bell * mills(x);
        share = x < 0.0f ? tail : 1.0f - tail;
        slope = share + x * bell * 0.3989422804014327f;
    } else {
        float u = x, du = 1.0f;
        if constexpr (ACTIVATION == GELU_TANH) {  // (1 + tanh(v)) / 2 is sigmoid(2 v)
            u = x * (1.5957691216057308f + 0.07135481282553304f * x * x);
            du = 1.5957691216057308f + 0.2140644384766f * x * x;
        }
        share = inverse(1.0f + power_of_2(u * -1.4426950408889634f));
        slope = share + x * share * (1.0f - share) * du;
    }
    return x * share;
}
// --8<-- [end:activation]

// --8<-- [start:flat]
template <int N>
__device__ __forceinline__ void forward_of(const float (&gate)[N], const float (&up)[N], float (&y)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        float slope;
        y[n] = activate(gate[n], slope) * up[n];
    }
}

/// The activation is computed again: reading it would be one read more.
template <int N>
__device__ __forceinline__ void backward_of(
    const float (&dy)[N], const float (&gate)[N], const float (&up)[N], float (&dgate)[N], float (&dup)[N]
) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        float slope;
        const float value = activate(gate[n], slope);
        dgate[n] = dy[n] * up[n] * slope;
        dup[n] = dy[n] * value;
    }
}

/// Contiguous tensors are one long vector. All loads of a thread are on their way before it computes.
extern "C" __global__ void __launch_bounds__(THREADS)
swiglu_forward(const GATE* __restrict__ gate, const UP* __restrict__ up, Y* __restrict__ y, long long total) {
    constexpr int BLOCK = THREADS * VECTORS * VECTOR;
    const long long start = blockIdx.x * (long long)BLOCK + threadIdx.x * VECTOR;
    if (start - threadIdx.x * VECTOR + BLOCK <= total) {
        float gates[VECTORS][VECTOR], ups[VECTORS][VECTOR], result[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            load(gate + start + v * THREADS * VECTOR, gates[v]);
            load(up + start + v * THREADS * VECTOR, ups[v]);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            forward_of(gates[v], ups[v], result);
            store(y + start + v * THREADS * VECTOR, result);
        }
    } else {  // the last block, element by element
        for (long long at = start - threadIdx.x * (VECTOR - 1); at < total; at += THREADS) {
            float gates[1] = {one(gate + at)}, ups[1] = {one(up + at)}, result[1];
            forward_of(gates, ups, result);
            one(y + at, result[0]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
swiglu_backward(
    const DY* __restrict__ dy, const GATE* __restrict__ gate, const UP* __restrict__ up,
    GATE* __restrict__ dgate, UP* __restrict__ dup, long long total
) {
    constexpr int BLOCK = THREADS * VECTORS * VECTOR;
    const long long start = blockIdx.x * (long long)BLOCK + threadIdx.x * VECTOR;
    if (start - threadIdx.x * VECTOR + BLOCK <= total) {
        float dys[VECTORS][VECTOR], gates[VECTORS][VECTOR], ups[VECTORS][VECTOR], dgates[VECTOR], dups[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            load(dy + start + v * THREADS * VECTOR, dys[v]);
            load(gate + start + v * THREADS * VECTOR, gates[v]);
            load(up + start + v * THREADS * VECTOR, ups[v]);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            backward_of(dys[v], gates[v], ups[v], dgates, dups);
            store(dgate + start + v * THREADS * VECTOR, dgates);
            store(dup + start + v * THREADS * VECTOR, dups);
        }
    } else {
        for (long long at = start - threadIdx.x * (VECTOR - 1); at < total; at += THREADS) {
            float dys[1] = {one(dy + at)}, gates[1] = {one(gate + at)}, ups[1] = {one(up + at)}, dgates[1], dups[1];
            backward_of(dys, gates, ups, dgates, dups);
            one(dgate + at, dgates[0]);
            one(dup + at, dups[0]);
        }
    }
}
// --8<-- [end:flat]

// --8<-- [start:rows]
/// Rows that lie apart, as halves of a fused projection do. N and total count vectors, strides elements. One division
/// for a vector, and 32 bits wide where it can be: 64 take many instructions.
extern "C" __global__ void __launch_bounds__(THREADS)
swiglu_forward_rows(
    const GATE* __restrict__ gate, const UP* __restrict__ up, Y* __restrict__ y,
    long long gate_stride, long long up_stride, INDEX N, INDEX total
) {
    const INDEX start = blockIdx.x * (INDEX)(THREADS * VECTORS) + threadIdx.x;
    float gates[VECTORS][VECTOR], ups[VECTORS][VECTOR], result[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const INDEX vector = start + v * THREADS, row = vector / N, column = (vector - row * N) * VECTOR;
        if (vector < total) {
            load(gate + (row * gate_stride + column), gates[v]);
            load(up + (row * up_stride + column), ups[v]);
        }
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const INDEX vector = start + v * THREADS;
        if (vector < total) {
            forward_of(gates[v], ups[v], result);
            store(y + vector * (long long)VECTOR, result);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
swiglu_backward_rows(
    const DY* __restrict__ dy, const GATE* __restrict__ gate, const UP* __restrict__ up,
    GATE* __restrict__ dgate, UP* __restrict__ dup,
    long long dy_stride, long long gate_stride, long long up_stride, long long grad_stride, INDEX N, INDEX total
) {
    const INDEX start = blockIdx.x * (INDEX)(THREADS * VECTORS) + threadIdx.x;
    float dys[VECTORS][VECTOR], gates[VECTORS][VECTOR], ups[VECTORS][VECTOR], dgates[VECTOR], dups[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const INDEX vector = start + v * THREADS, row = vector / N, column = (vector - row * N) * VECTOR;
        if (vector < total) {
            load(dy + (row * dy_stride + column), dys[v]);
            load(gate + (row * gate_stride + column), gates[v]);
            load(up + (row * up_stride + column), ups[v]);
        }
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const INDEX vector = start + v * THREADS, row = vector / N, column = (vector - row * N) * VECTOR;
        if (vector < total) {
            backward_of(dys[v], gates[v], ups[v], dgates, dups);
            store(dgate + (row * grad_stride + column), dgates);
            store(dup + (row * grad_stride + column), dups);
        }
    }
}
// --8<-- [end:rows]
