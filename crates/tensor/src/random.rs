//! Counter-based random numbers: a number is a function of its address, never of the numbers drawn before.
//!
//! The generator is Philox4x32 with ten rounds (Salmon et al., 2011). A [`Stream`] fixes seed, step and layer; an
//! element is addressed by the example's global index and the element's index inside the example.

/// The random numbers of one layer in one step.
///
/// ```
/// use plimsoll_tensor::random::Stream;
/// let stream = Stream::new(7, 0, "block1/dropout");
/// let early = stream.uniform(3, 5);
/// let _other_order = (stream.uniform(0, 0), stream.normal(9, 9));
/// assert_eq!(early, Stream::new(7, 0, "block1/dropout").uniform(3, 5));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: [u32; 2],
    step: u32,
    stream: u32,
}

impl Stream {
    /// The stream of the layer `name` in step `step` of a run with seed `seed`.
    pub fn new(seed: u64, step: u64, name: &str) -> Self {
        let hash = fnv1a(name);
        let key = seed ^ (hash & 0xffff_ffff_0000_0000);
        Self { key: [key as u32, (key >> 32) as u32], step: step as u32, stream: hash as u32 }
    }

    /// Four random words for a block of four elements.
    pub fn block(&self, example: u64, block: u32) -> [u32; 4] {
        let high = (example >> 32) as u32;
        philox([block, example as u32, self.step, self.stream ^ high.rotate_left(16)], self.key)
    }

    /// One random word.
    pub fn word(&self, example: u64, element: u64) -> u32 {
        self.block(example, (element / 4) as u32)[(element % 4) as usize]
    }

    /// Uniform in [0, 1) with 24 random bits.
    pub fn uniform(&self, example: u64, element: u64) -> f32 {
        self.uniform_block(example, (element / 4) as u32)[(element % 4) as usize]
    }

    /// Four of [`Stream::uniform`] for a block of four elements.
    pub fn uniform_block(&self, example: u64, block: u32) -> [f32; 4] {
        self.block(example, block).map(|word| (word >> 8) as f32 * (1.0 / 16_777_216.0))
    }

    /// Standard normal.
    pub fn normal(&self, example: u64, element: u64) -> f32 {
        self.normal_block(example, (element / 4) as u32)[(element % 4) as usize]
    }

    /// Four standard normals for a block of four elements, by the Box-Muller transform: two from each pair of words.
    pub fn normal_block(&self, example: u64, block: u32) -> [f32; 4] {
        let words = self.block(example, block);
        let unit = |w: u32| (f64::from(w) + 0.5) / 4_294_967_296.0;
        let pair = |a: u32, b: u32| {
            let (radius, angle) = ((-2.0 * unit(a).ln()).sqrt(), std::f64::consts::TAU * unit(b));
            let (sin, cos) = angle.sin_cos();
            ((radius * cos) as f32, (radius * sin) as f32)
        };
        let ((a, b), (c, d)) = (pair(words[0], words[1]), pair(words[2], words[3]));
        [a, b, c, d]
    }

    /// Uniform integer in `0..bound` (bias below 2^-32 · bound).
    pub fn below(&self, example: u64, element: u64, bound: u32) -> u32 {
        ((u64::from(self.word(example, element)) * u64::from(bound)) >> 32) as u32
    }
}

/// FNV-1a: stable across builds and platforms, unlike the standard library's hashers.
pub fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Ten rounds of Philox4x32.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// A small sequential generator for heuristics that need variety, not quality: the planner's local searches, and tests. The
/// same seed gives the same numbers on every machine.
///
/// ```
/// use plimsoll_tensor::random::Lcg;
/// let mut random = Lcg::new(1);
/// assert!(random.below(6) < 6);
/// assert!((0.0..1.0).contains(&random.unit()));
/// ```
#[derive(Clone, Debug)]
pub struct Lcg(u64);

impl Lcg {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// A number below a limit, which is at least 1.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit.max(1)
    }

    /// A number from 0 up to 1, exclusive.
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the generator (Random123's kat_vectors).
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn uniform_and_normal_have_their_mean_and_variance() {
        let stream = Stream::new(1, 2, "moments");
        let n = 40_000u64;
        let (mut u, mut m, mut v) = (0.0, 0.0, 0.0);
        for i in 0..n {
            u += f64::from(stream.uniform(i % 100, i / 100));
            let x = f64::from(stream.normal(i % 100, i / 100));
            m += x;
            v += x * x;
        }
        let n = n as f64;
        assert!((u / n - 0.5).abs() < 0.01 && (m / n).abs() < 0.02 && (v / n - 1.0).abs() < 0.03);
    }

    #[test]
    fn neighbouring_addresses_differ() {
        let word = |seed, step, name: &str, example| Stream::new(seed, step, name).word(example, 0);
        let base = word(1, 1, "a", 1);
        for other in [
            word(2, 1, "a", 1),
            word(1, 2, "a", 1),
            word(1, 1, "b", 1),
            word(1, 1, "a", 2),
            word(1, 1, "a", 1 << 32),
        ] {
            assert_ne!(base, other);
        }
    }
}
