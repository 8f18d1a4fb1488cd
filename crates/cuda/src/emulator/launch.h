// Follows a kernel's source: calls it with parameters from an array, for every thread of every block.
template <int... I> struct Places {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> {
    typedef Places<I...> places;
};

static thread_local void **arguments;

template <class... A, int... I> static void call_kernel(void (*function)(A...), Places<I...>) {
    function(*(A *)arguments[I]...);
}

template <class... A> static void call_kernel(void (*function)(A...)) {
    call_kernel(function, typename Count<sizeof...(A)>::places());
}

template <class... A> static constexpr int count_parameters(void (*)(A...)) { return sizeof...(A); }

static void run_thread(unsigned thread) {
    threadIdx.x = thread;
    call_kernel(kernel);
}

// Runs a function for every thread of a block; false if not all threads meet at a barrier.
typedef bool (*RunBlock)(unsigned threads, void (*run)(unsigned));

extern "C" int launch_kernel(void **given, int count, const unsigned *blocks, unsigned threads, RunBlock run_block, void (*meet)()) {
    if (count != count_parameters(kernel)) return 1;
    arguments = given;
    meet_threads = meet;
    blockDim = dim3{threads, 1, 1};
    gridDim = dim3{blocks[0], blocks[1], blocks[2]};
    for (unsigned z = 0; z < blocks[2]; z++)
        for (unsigned y = 0; y < blocks[1]; y++)
            for (unsigned x = 0; x < blocks[0]; x++) {
                blockIdx = uint3{x, y, z};
                if (!run_block(threads, run_thread)) return 2;
            }
    return 0;
}
