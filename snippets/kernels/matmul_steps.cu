// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The Ridgepoint authors
//
// Three steps of a matrix product in CUDA C++ for an H100: naive, with shared memory, with tensor cores. c = a b, with
// a (M, K), b (K, N) and c row by row in bf16, sums in fp32. matmul_steps_cuda.py beside it compiles and launches it.
//
// It includes nothing, so that NVRTC compiles it without a toolkit; with one, `nvcc -std=c++17
// -gencode=arch=compute_90a,code=sm_90a -cubin matmul_steps.cu` does.

struct bf16 { unsigned short bits; };

__device__ __forceinline__ float wide(unsigned int bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ unsigned int pair(float low, float high) {  // rounded
    unsigned int word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// --8<-- [start:naive]
/// A thread has one element of c, and reads a row of a and a column of b for it. A block has 8 rows, 32 columns.
extern "C" __global__ void __launch_bounds__(256)
naive(const bf16* a, const bf16* b, bf16* c, int M, int N, int K) {
    const int row = blockIdx.x / (N / 32) * 8 + threadIdx.x / 32;
    const int col = blockIdx.x % (N / 32) * 32 + threadIdx.x % 32;
    float sum = 0.0f;
    for (int k = 0; k < K; k++) sum += wide(a[row * K + k].bits) * wide(b[k * N + col].bits);
    c[row * N + col].bits = pair(sum, 0.0f);
}
// --8<-- [end:naive]

// --8<-- [start:shared]
/// A block has 128 x 128 elements of c, a thread 8 x 8. Tiles of a and b, 16 deep, are in shared memory for all.
extern "C" __global__ void __launch_bounds__(256)
shared_memory(const bf16* a, const bf16* b, bf16* c, int M, int N, int K) {
    __shared__ __align__(16) float as[16][128], bs[16][128];  // as: [k][row], so that a thread's 8 rows are neighbours
    const int top = blockIdx.x / (N / 128) * 128, left = blockIdx.x % (N / 128) * 128, t = threadIdx.x;
    float sums[8][8] = {};
    for (int k = 0; k < K; k += 16) {
        const uint4 of_a = *(const uint4*)(a + (top + t % 128) * K + k + t / 128 * 8);  // 8 neighbours
        const uint4 of_b = *(const uint4*)(b + (k + t / 16) * N + left + t % 16 * 8);
        const unsigned int a_words[] = {of_a.x, of_a.y, of_a.z, of_a.w}, b_words[] = {of_b.x, of_b.y, of_b.z, of_b.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            as[t / 128 * 8 + i][t % 128] = wide(i % 2 ? a_words[i / 2] >> 16 : a_words[i / 2]);
            bs[t / 16][t % 16 * 8 + i] = wide(i % 2 ? b_words[i / 2] >> 16 : b_words[i / 2]);
        }
        __syncthreads();
#pragma unroll
        for (int inner = 0; inner < 16; inner++) {
            float rows[8], cols[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                rows[i] = as[inner][t / 16 * 8 + i];
                cols[i] = bs[inner][i / 4 * 64 + t % 16 * 4 + i % 4];  // two runs of 4: no two threads on one bank
            }
#pragma unroll
            for (int i = 0; i < 64; i++) sums[i / 8][i % 8] += rows[i / 8] * cols[i % 8];
        }
        __syncthreads();  // before the next tiles come
    }
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int row = top + t / 16 * 8 + i / 8, col = left + i % 8 / 4 * 64 + t % 16 * 4 + i % 4;
        *(unsigned int*)(c + row * N + col) = pair(sums[i / 8][i % 8], sums[i / 8][i % 8 + 1]);
    }
}
// --8<-- [end:shared]

// --8<-- [start:instructions]
/// 16 bytes from global to shared memory, past the registers, and later.
__device__ __forceinline__ void copy_later(unsigned int to, const bf16* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

/// Where the tensor cores find a tile in shared memory: swizzled rows of 128 bytes, eight of them in 1024 bytes.
/// `panel`: bytes from one 64 columns to the next, of b.
__device__ __forceinline__ unsigned long long tile_at(unsigned int address, unsigned int panel) {
    return (address & 0x3ffff) >> 4 | (unsigned long long)(panel >> 4) << 16 | 1024ull >> 4 << 32 | 1ull << 62;
}

/// d (64 x 256) = d + a (64 x 16) b (16 x 256), by a warpgroup: 128 threads, 128 sums each. b lies row by row.
__device__ __forceinline__ void wgmma(float (&d)[128], unsigned long long a, unsigned long long b) {
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
    asm volatile(
        "{ .reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1, 0, 1; }"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)
        : "l"(a), "l"(b));
}

/// The compiler must not use the sums before this, nor set them after it: they belong to wgmma, which it does not see.
__device__ __forceinline__ void keep(float (&d)[128]) {
#pragma unroll
    for (int i = 0; i < 128; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
// --8<-- [end:instructions]

// --8<-- [start:tensor-cores]
constexpr int BM = 128, BN = 256, BK = 64, STAGES = 4, GROUP = 16;
constexpr int A_BYTES = BM * BK * 2, STAGE = A_BYTES + BK * BN * 2;

/// Every thread's part of both tiles; 16 bytes go where the tensor cores look for them: their place in a row of 128
/// bytes is swizzled (exclusive or) by the row.
__device__ __forceinline__ void load(unsigned int to, const bf16* a, const bf16* b, int N, int K) {
#pragma unroll
    for (int n = 0; n < BM * BK / 8 / 256; n++) {
        const int i = n * 256 + threadIdx.x, row = i / 8, place = i % 8;
        copy_later(to + row * 128 + (place ^ row % 8) * 16, a + row * K + place * 8);
    }
#pragma unroll
    for (int n = 0; n < BK * BN / 8 / 256; n++) {  // b in four panels of 64 columns
        const int i = n * 256 + threadIdx.x, row = i / 32, panel = i % 32 / 8, place = i % 8;
        const int at = A_BYTES + panel * BK * 128 + row * 128 + (place ^ row % 8) * 16;
        copy_later(to + at, b + row * N + panel * 64 + place * 8);
    }
}

/// A block has 128 x 256 elements of c, each of its two warpgroups 64 rows. Two tiles are on their way, one is being
/// multiplied, and one was: its place is free when all have passed the barrier.
extern "C" __global__ void __launch_bounds__(256, 1)
tensor_cores(const bf16* a, const bf16* b, bf16* c, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned int base = (unsigned int)__cvta_generic_to_shared(memory), group = threadIdx.x / 128;
    const int across = GROUP * (N / BN), first = blockIdx.x / across * GROUP, down = min(M / BM - first, GROUP);
    const int top = (first + blockIdx.x % across % down) * BM, left = blockIdx.x % across / down * BN;
    a += top * K, b += left;
    float d[128] = {};
    keep(d);
    for (int tile = 0; tile < STAGES - 2; tile++) {
        if (tile < K / BK) load(base + tile * STAGE, a + tile * BK, b + tile * BK * N, N, K);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int tile = 0; tile < K / BK; tile++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 3) : "memory");  // this thread's part has come,
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");            // for the tensor cores, too,
        __syncthreads();                                                        // and so have all others'
        const unsigned int a_at = base + tile % STAGES * STAGE + group * 64 * 128;
        const unsigned int b_at = base + tile % STAGES * STAGE + A_BYTES;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < BK / 16; k++)
            wgmma(d, tile_at(a_at + k * 32, 0), tile_at(b_at + k * 16 * 128, BK * 128));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (const int next = tile + STAGES - 2; next < K / BK)
            load(base + next % STAGES * STAGE, a + next * BK, b + next * BK * N, N, K);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the tile before is done with
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    keep(d);
    const int row = top + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  // a warp has 16 rows
#pragma unroll
    for (int i = 0; i < 128; i += 2) {
        const int col = left + i / 4 * 8 + threadIdx.x % 4 * 2;
        *(unsigned int*)(c + (row + i % 4 / 2 * 8) * N + col) = pair(d[i], d[i + 1]);
    }
}
// --8<-- [end:tensor-cores]
