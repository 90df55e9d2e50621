// CUDA C++ as C++ for this machine: enough of it for the kernels of kernels/. A block's threads are fibers, which take
// turns where they wait for each other; blocks run one after the other.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include <ucontext.h>

#define __global__ inline  // the file's other kernels are not compiled
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint2 { unsigned int x, y; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned int bits) { float f; memcpy(&f, &bits, 4); return f; }
inline unsigned int __float_as_uint(float f) { unsigned int bits; memcpy(&bits, &f, 4); return bits; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __ffs(unsigned int bits) { return __builtin_ffs(bits); }
inline void __nanosleep(unsigned int) {}
template <typename T> T __ldcs(const T* at) { return *at; }
template <typename T> void __stcs(T* at, T value) { *at = value; }

// ---- a block's threads ----------------------------------------------------------------------------------------------

struct Index { unsigned int x; };
inline Index blockIdx, gridDim;
inline std::vector<ucontext_t> fibers;
inline std::vector<char> finished;
inline ucontext_t outside;
inline int now;
inline std::function<void()> body;
#define threadIdx (Index{(unsigned int)now})

inline void yield() {  // to the next one that has something to do
    const int before = now;
    for (int tries = 0; tries < (int)fibers.size(); tries++) {
        now = (now + 1) % fibers.size();
        if (!finished[now]) {
            if (now != before) swapcontext(&fibers[before], &fibers[now]);
            return;
        }
    }
    setcontext(&outside);
}
inline void fiber() {
    body();
    finished[now] = 1;
    yield();
}
struct Barrier {
    int arrived = 0, generation = 0;
    void wait(int count) {
        const int mine = generation;
        if (++arrived == count) arrived = 0, generation++;
        else while (generation == mine) yield();
    }
};
inline Barrier of_block, of_warp[32];
inline unsigned int exchanged[1024];
inline void __syncthreads() { of_block.wait(fibers.size()); }
inline unsigned int from_lane(unsigned int bits, int lane) {
    const int warp = now / 32;
    exchanged[now] = bits;
    of_warp[warp].wait(32);
    const unsigned int found = exchanged[warp * 32 + lane];
    of_warp[warp].wait(32);
    return found;
}
inline float __shfl_sync(unsigned int, float value, int lane) { return __uint_as_float(from_lane(__float_as_uint(value), lane)); }
inline float __shfl_xor_sync(unsigned int, float value, int step) { return __shfl_sync(0, value, now % 32 ^ step); }
inline unsigned int __ballot_sync(unsigned int, bool vote) {
    unsigned int votes = 0;
    for (int lane = 0; lane < 32; lane++) votes |= from_lane(vote, lane) << lane;
    return votes;
}

template <typename... A, size_t... I>
void on_host(void (*kernel)(A...), std::index_sequence<I...>, int blocks, int threads, void** at) {
    std::vector<std::vector<char>> stacks(threads, std::vector<char>(1 << 17));
    body = [=] { kernel(*(A*)at[I]...); };
    gridDim.x = blocks;
    for (int block = 0; block < blocks; block++) {
        blockIdx.x = block;
        fibers.assign(threads, ucontext_t());
        finished.assign(threads, 0);
        for (int thread = 0; thread < threads; thread++) {
            getcontext(&fibers[thread]);
            fibers[thread].uc_stack.ss_sp = stacks[thread].data();
            fibers[thread].uc_stack.ss_size = stacks[thread].size();
            makecontext(&fibers[thread], fiber, 0);
        }
        now = 0;
        swapcontext(&outside, &fibers[0]);
    }
}
template <typename... A> void launch(void (*kernel)(A...), int blocks, int threads, void** at) {
    on_host(kernel, std::index_sequence_for<A...>(), blocks, threads, at);
}

// ---- in the place of the section of instructions --------------------------------------------------------------------

inline float from_fp16(unsigned int word) {
    _Float16 half; unsigned short bits = word; memcpy(&half, &bits, 2); return half;
}
inline unsigned int fp16_of(float value) { _Float16 half = value; unsigned short bits; memcpy(&bits, &half, 2); return bits; }
inline unsigned int bf16_of(float value) {
    const unsigned int bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned int pair_of_fp16(float low, float high) { return fp16_of(low) | fp16_of(high) << 16; }
inline unsigned int pair_of_bf16(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }
inline float power_of_2(float x) { return std::exp2(x); }
inline float inverse(float x) { return 1.0f / x; }
inline float inverse_root(float x) { return rsqrtf(x); }
inline unsigned int factors[1024][6];
template <typename T> void add_product(float (&sum)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, T t) {
    const int warp = now / 32 * 32, group = now % 32 / 4, place = now % 4;
    memcpy(factors[now], a, 16), factors[now][4] = b0, factors[now][5] = b1;
    of_warp[now / 32].wait(32);
    for (int i = 0; i < 4; i++) {
        const int row = group + i / 2 * 8, column = 2 * place + i % 2;
        double product = 0;
        for (int k = 0; k < 16; k++) {
            const auto& of_row = factors[warp + row % 8 * 4 + k % 8 / 2];
            const auto& of_column = factors[warp + column * 4 + k % 8 / 2];
            const unsigned int one = of_row[row / 8 + k / 8 * 2], other = of_column[4 + k / 8];
            product += k % 2 ? (double)high(one, t) * high(other, t) : (double)low(one, t) * low(other, t);
        }
        sum[i] += product;
    }
    of_warp[now / 32].wait(32);
}
inline void kept(unsigned int&) {}
template <int BYTES> void copy(void* to, const void* from, bool inside) {
    if (inside) memcpy(to, from, BYTES); else memset(to, 0, BYTES);
}
inline void end_of_group() {}
template <int> void wait_for_all_but() {}
inline void publish(unsigned long long* at, unsigned long long word) { *at = word; }
inline unsigned long long look(const unsigned long long* at) { return *at; }
