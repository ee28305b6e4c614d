//! What the products of every crate share: the problem, and the measurement.

use std::time::Instant;

/// `C[m, n] = A[m, k] · W[n, k]ᵀ`, with weights rotated over `copies` of them, so that they come from memory as they do
/// in a model.
pub struct Problem {
    pub threads: usize,
    pub repeats: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub copies: usize,
}

impl Problem {
    /// From `THREADS REPEATS M N K COPIES`; rayon gets so many threads.
    pub fn from_arguments() -> Self {
        let numbers: Vec<usize> = std::env::args().skip(1).map(|n| n.parse().expect("a number")).collect();
        let [threads, repeats, m, n, k, copies] = numbers[..] else { panic!("THREADS REPEATS M N K COPIES") };
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().expect("one pool");
        Self { threads, repeats, m, n, k, copies }
    }

    /// A, and every copy of W.
    pub fn values(&self) -> (Vec<f32>, Vec<Vec<f32>>) {
        let value = |i: usize| (i * 7919 % 1000) as f32 / 1000.0 - 0.5;
        let weight = |copy: usize| (0..self.n * self.k).map(|i| value(i + copy)).collect();
        ((0..self.m * self.k).map(value).collect(), (0..self.copies).map(weight).collect())
    }

    /// Prints the seconds of `run`, which is given the copy to multiply with.
    pub fn report(&self, library: &str, dtype: &str, run: &mut dyn FnMut(usize)) {
        let Self { repeats, m, n, k, copies, .. } = *self;
        let inner = ((1e9 / (2 * m * n * k) as f64) as usize).max(copies).clamp(1, 64);
        (0..=copies).for_each(|turn| run(turn % copies));
        let mut turn = 0;
        for _ in 0..repeats {
            let start = Instant::now();
            for _ in 0..inner {
                run(turn % copies);
                turn += 1;
            }
            let seconds = start.elapsed().as_secs_f64() / inner as f64;
            println!("{{\"library\":\"{library}\",\"what\":\"{dtype} {m},{n},{k}\",\"value\":{seconds:e}}}");
        }
    }
}
