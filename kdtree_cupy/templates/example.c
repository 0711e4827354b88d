// example.c: one tree from log-probs, and the path that a target agrees with, by the CUDA driver API.
//
//     cc example.c -I. -I$CUDA_HOME/include -lcuda -lm -o example && ./example . sm_120
//
// The tree: two positions of two ranks (probabilities 0.6, 0.3 and 0.5, 0.4), budget 3.  Best first: (0), (0, 0),
// (1).  The target then chooses 7, 9, 4: nodes 0, 1, 2, and 4 is the next root.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kdtree_kernels.h"

#define CHECK(call)                                                          \
    do {                                                                     \
        CUresult code = (call);                                              \
        const char* text = 0;                                                \
        if (code != CUDA_SUCCESS) {                                          \
            cuGetErrorString(code, &text);                                   \
            fprintf(stderr, "%s: %s\n", #call, text ? text : "unknown error"); \
            return 1;                                                        \
        }                                                                    \
    } while (0)

enum { DEPTH = 2, WIDTH = 2, NODES = 4 };

static int on_device(CUdeviceptr* where, const void* values, size_t bytes)
{
    CHECK(cuMemAlloc(where, bytes));
    if (values) CHECK(cuMemcpyHtoD(*where, values, bytes));
    return 0;
}

static int load(CUfunction* kernel, const char* folder, const char* file, const char* arch, const char* name)
{
    char path[4096];
    CUmodule module;
    snprintf(path, sizeof path, "%s/%s.%s.cubin", folder, file, arch);
    CHECK(cuModuleLoad(&module, path));
    CHECK(cuModuleGetFunction(kernel, module, name));
    return 0;
}

static int run(const char* folder, const char* arch)
{
    const int ids[DEPTH * WIDTH] = {7, 8, 9, 5}, root = 1, targets[NODES] = {7, 9, 4, 0};
    const float logprobs[DEPTH * WIDTH] = {logf(0.6f), logf(0.3f), logf(0.5f), logf(0.4f)};
    kd_tree_build_v2_args build;
    kd_tree_accept_v2_args accept;
    CUfunction build_kernel, accept_kernel;
    memset(&build, 0, sizeof build);  // null pointers: one budget, depth and rank for all; lengths 0
    memset(&accept, 0, sizeof accept);
    if (load(&build_kernel, folder, "tree_build", arch, "tree_build_v2")) return 1;
    if (load(&accept_kernel, folder, "tree_accept", arch, "tree_accept_v2")) return 1;

    if (on_device(&build.ids, ids, sizeof ids) || on_device(&build.logprobs, logprobs, sizeof logprobs)) return 1;
    if (on_device(&build.root_tokens, &root, sizeof root)) return 1;
    CUdeviceptr* results[] = {&build.tokens, &build.parents, &build.depths, &build.ranks, &build.scores, &build.counts,
                              &build.status, &build.mask, &build.positions};
    for (int i = 0; i < 9; ++i)
        if (on_device(results[i], 0, 8 * NODES)) return 1;  // scores are doubles; the others need less
    build.depth = DEPTH, build.width = WIDTH, build.num_nodes = NODES;
    build.every_budget = NODES - 1, build.every_max_depth = DEPTH, build.every_max_rank = WIDTH;
    CHECK(cuFuncSetAttribute(build_kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, KD_TREE_BUILD_V2_SHARED));
    CHECK(kd_tree_build_v2_launch(build_kernel, 1, 1, 1, 128, KD_TREE_BUILD_V2_SHARED, 0, &build));

    accept.tokens = build.tokens, accept.parents = build.parents, accept.counts = build.counts;
    if (on_device(&accept.target_tokens, targets, sizeof targets)) return 1;
    CUdeviceptr* walked[] = {&accept.path, &accept.path_length, &accept.next_token, &accept.status};
    for (int i = 0; i < 4; ++i)
        if (on_device(walked[i], 0, sizeof(int) * (DEPTH + 1))) return 1;
    accept.batch = 1, accept.num_nodes = NODES, accept.max_depth = DEPTH, accept.vocab_size = 0;
    CHECK(kd_tree_accept_v2_launch(accept_kernel, 1, 1, 1, 32, sizeof(int) * NODES, 0, &accept));

    int tokens[NODES], parents[NODES], path[DEPTH + 1], next;
    CHECK(cuMemcpyDtoH(tokens, build.tokens, sizeof tokens));  // waits
    CHECK(cuMemcpyDtoH(parents, build.parents, sizeof parents));
    CHECK(cuMemcpyDtoH(path, accept.path, sizeof path));
    CHECK(cuMemcpyDtoH(&next, accept.next_token, sizeof next));
    for (int i = 0; i < NODES; ++i) printf("node %d: token %d, parent %d\n", i, tokens[i], parents[i]);
    printf("path %d %d %d, next root %d\n", path[0], path[1], path[2], next);
    const int right = tokens[1] == 7 && tokens[2] == 9 && tokens[3] == 8 && parents[2] == 1 && parents[3] == 0
        && path[1] == 1 && path[2] == 2 && next == 4;
    puts(right ? "as it should be" : "WRONG");
    return !right;
}

int main(int count, char** words)
{
    CUdevice device;
    CUcontext context;
    if (count != 3) return fprintf(stderr, "usage: %s FOLDER ARCH\n", words[0]), 2;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return run(words[1], words[2]);
}
