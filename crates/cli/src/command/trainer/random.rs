//! Numbers that depend on a seed and on nothing else: every worker draws its own, and none needs to tell another.

/// Steele, Lea and Flood's SplitMix64: small, and good enough to draw examples with.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Other keys, other numbers.
    pub(super) fn new(keys: &[u64]) -> Random {
        let mut random = Random(0x5eed);
        for &key in keys {
            random.0 ^= key;
            random.0 = random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// From 0 to 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// From -1 to 1.
    pub(super) fn centred(&mut self) -> f32 {
        2.0 * self.unit() - 1.0
    }
}
