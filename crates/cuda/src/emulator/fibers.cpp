// The threads of a block, one after the other. A thread that reaches a barrier is left where it is, on a stack of its own, until
// all others have reached it. Threads that reach none share a stack.
#include <csetjmp>
#include <cstdlib>
#include <ucontext.h>

namespace {

const size_t STACK = 128 << 10;
const unsigned MOST = 1024;

struct Fiber {
    ucontext_t start;
    jmp_buf at;
    void *stack;
    bool waits;
};

struct Block {
    Fiber fibers[MOST];
    jmp_buf scheduler;
    void (*run)(unsigned);
    unsigned threads, next, current;
};

thread_local Block *block = nullptr;

// Frees what a thread of the host used.
struct Owner {
    ~Owner() {
        if (!block) return;
        for (Fiber &fiber : block->fibers) free(fiber.stack);
        free(block);
    }
};
thread_local Owner owner;

// A fiber: runs threads that nobody has begun yet, until none is left or one waits.
void work() {
    Block &b = *block;
    unsigned self = b.current;
    while (b.next < b.threads) b.run(b.next++);
    b.fibers[self].waits = false;
    _longjmp(b.scheduler, 1);
}

void start(Block &b, unsigned at) {
    Fiber &fiber = b.fibers[at];
    if (!fiber.stack) fiber.stack = malloc(STACK);
    if (!fiber.stack || getcontext(&fiber.start)) abort();
    fiber.start.uc_stack.ss_sp = fiber.stack;
    fiber.start.uc_stack.ss_size = STACK;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, work, 0);
    b.current = at;
    if (_setjmp(b.scheduler) == 0) setcontext(&fiber.start);
}

void resume(Block &b, unsigned at) {
    b.current = at;
    if (_setjmp(b.scheduler) == 0) _longjmp(b.fibers[at].at, 1);
}

} // namespace

extern "C" void meet_threads() {
    Block &b = *block;
    Fiber &fiber = b.fibers[b.current];
    fiber.waits = true;
    if (_setjmp(fiber.at) == 0) _longjmp(b.scheduler, 1);
}

extern "C" bool run_block(unsigned threads, void (*run)(unsigned)) {
    if (threads > MOST) return false;
    if (!block) {
        (void)&owner;
        block = (Block *)calloc(1, sizeof(Block));
        if (!block) abort();
    }
    Block &b = *block;
    b.run = run;
    b.threads = threads;
    b.next = 0;
    unsigned fibers = 0;
    while (b.next < b.threads) start(b, fibers++);
    // Every other time from the last thread to the first, so that a missing barrier shows.
    for (bool backwards = true;; backwards = !backwards) {
        unsigned waiting = 0;
        for (unsigned i = 0; i < fibers; i++) waiting += b.fibers[i].waits;
        if (waiting == 0) return true;
        if (waiting < threads) return false;
        for (unsigned i = 0; i < fibers; i++) resume(b, backwards ? fibers - 1 - i : i);
    }
}
