// The number, mean and sum of squared distances from the mean of some elements.
struct Moments {
    W count, mean, squares;
};

// Those of two sets together.
__device__ inline Moments join(Moments a, Moments b) {
    if (b.count == 0) return a;
    if (a.count == 0) return b;
    const W count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;
    Moments both;
    both.count = count;
    both.mean = a.mean + distance * share;
    both.squares = a.squares + b.squares + distance * distance * a.count * share;
    return both;
}
