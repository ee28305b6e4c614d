//! A side of the round robin in `benches/peers`: a process that says what it can measure, and then measures what it is
//! asked for, so that contenders take turns from one moment to the next. Stands alone: the peers in
//! `benches/peers/rust` are built with it too, without Sinew.

use std::io::BufRead;
use std::time::Instant;

/// What ends a contender.
pub type Error = Box<dyn std::error::Error>;

/// One figure that a contender can measure.
#[derive(Clone, Debug)]
pub struct Item {
    /// Whose figure it is, where one process measures several libraries; otherwise empty.
    pub library: String,
    /// What is measured, in the words of every contender.
    pub what: String,
    /// Unit of the figure.
    pub unit: &'static str,
}

impl Item {
    /// A figure of the process's own library.
    pub fn new(what: impl Into<String>, unit: &'static str) -> Self {
        Self { library: String::new(), what: what.into(), unit }
    }
}

/// A figure.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// In the item's unit.
    pub value: f64,
    /// What the machine's limits allow in that moment, in the same unit; NaN where it was not measured.
    pub limit: f64,
}

impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Self { value, limit: f64::NAN }
    }
}

/// Says that loading comes next, and waits for a line: until then files and memory are made ready.
///
/// # Errors
/// An input that cannot be read.
pub fn ready() -> Result<(), Error> {
    println!("{{\"ready\":true}}");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Prints a figure that comes but once, such as that of loading.
pub fn put(what: &str, value: f64, unit: &str) {
    println!("{{\"what\":\"{what}\",\"value\":{value:e},\"unit\":\"{unit}\"}}");
}

/// Prints what can be measured, and then a figure for each line of the standard input, which is the number of an item.
/// Ends with the input.
///
/// # Errors
/// Lines that are no numbers of items, and those of `measure`.
pub fn serve(items: &[Item], measure: &mut dyn FnMut(&Item) -> Result<Measured, Error>) -> Result<(), Error> {
    let list = items.iter().map(|Item { library, what, unit }| {
        format!("{{\"library\":\"{library}\",\"what\":\"{what}\",\"unit\":\"{unit}\"}}")
    });
    println!("{{\"items\":[{}]}}", list.collect::<Vec<_>>().join(","));
    for line in std::io::stdin().lock().lines() {
        let number: usize = line?.trim().parse()?;
        let Measured { value, limit } = measure(items.get(number).ok_or("no such item")?)?;
        let limit = if limit.is_finite() { format!(",\"limit\":{limit:e}") } else { String::new() };
        println!("{{\"value\":{value:e}{limit}}}");
    }
    Ok(())
}

/// `C[m, n] = A[m, k] · W[n, k]ᵀ`, with weights rotated over several copies of them where there are few rows, so that
/// they come from memory as they do in a model.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of A.
    pub m: usize,
    /// Rows of W.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
}

/// Few rows: weights are rotated over this many bytes.
const ROTATE: usize = 256 << 20;
/// Rows up to which what counts is bytes of weights.
pub const FEW_ROWS: usize = 16;

impl Product {
    /// From `M,N,K`.
    ///
    /// # Errors
    /// Other texts.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let sizes = text.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
        let [m, n, k] = sizes[..] else { return Err("sizes are M,N,K".into()) };
        if m * n * k == 0 {
            return Err("sizes are at least 1".into());
        }
        Ok(Self { m, n, k })
    }

    /// Copies of weights of so many bytes each.
    pub fn copies(&self, weight_bytes: usize) -> usize {
        if self.m > FEW_ROWS { 1 } else { ROTATE.div_ceil(weight_bytes) }
    }

    /// Operations, a multiply-add counted as two.
    pub fn flops(&self) -> f64 {
        2.0 * (self.m * self.n * self.k) as f64
    }

    /// What this product is called in a dtype.
    pub fn item(&self, library: &str, dtype: &str) -> Item {
        let Self { m, n, k } = self;
        Item { library: library.to_owned(), what: format!("{dtype} {m},{n},{k}"), unit: "s" }
    }

    /// Mean seconds of `run`, which is given the number of the copy to multiply with: each in turn, for some tens of
    /// milliseconds or at least once.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn seconds<E>(&self, copies: usize, run: &mut dyn FnMut(usize) -> Result<(), E>) -> Result<f64, E> {
        let runs = ((4e9 / self.flops()) as usize).clamp(1, 64).max(copies);
        mean_seconds(runs, &mut |turn| run(turn % copies))
    }
}

/// Seconds of work before the clock, in which cores come awake.
const WARM_UP: f64 = 0.05;

/// Mean seconds of `runs` runs, each told its number, after some for nothing.
///
/// # Errors
/// Those of `run`.
pub fn mean_seconds<E>(runs: usize, run: &mut dyn FnMut(usize) -> Result<(), E>) -> Result<f64, E> {
    let (start, mut number) = (Instant::now(), 0);
    while number == 0 || start.elapsed().as_secs_f64() < WARM_UP {
        run(number % runs)?;
        number += 1;
    }
    let start = Instant::now();
    for number in 0..runs {
        run(number)?;
    }
    Ok(start.elapsed().as_secs_f64() / runs as f64)
}

/// What is asked of a model that generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Sequences at once.
    pub batch: usize,
    /// Steps behind the prompts; 0 where the prompts themselves are timed.
    pub steps: usize,
    /// Whether the sequences are requests of a scheduler, where there is one.
    pub requests: bool,
}

impl Generation {
    /// All of them, from `SHORT PREFILL STEPS BATCH BATCH_STEPS`, as measures.py has them: first the long prompt, then
    /// steps behind the short one; at last those of the batch as requests.
    ///
    /// # Errors
    /// Other arguments.
    pub fn all(sizes: &[String]) -> Result<Vec<Self>, Error> {
        let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
        let [short, long, steps, batch, batch_steps] = sizes[..] else {
            return Err("sizes are SHORT PREFILL STEPS BATCH BATCH_STEPS".into());
        };
        let of = |prompt, batch, steps| Self { prompt, batch, steps, requests: false };
        let as_requests = |prompt| Self { requests: true, ..of(prompt, batch, batch_steps) };
        Ok(vec![
            of(long, 1, 0),
            of(short, 1, steps),
            of(long, 1, steps),
            of(short, batch, batch_steps),
            of(long, batch, batch_steps),
            as_requests(short),
            as_requests(long),
        ])
    }

    /// What it is called.
    pub fn item(&self) -> Item {
        let Self { prompt, batch, steps, requests } = *self;
        let what = match (steps, batch) {
            (0, _) => format!("prefill {prompt}"),
            _ if requests => format!("{batch} requests, decode after {prompt}"),
            (_, 1) => format!("decode after {prompt}"),
            _ => format!("batch {batch}, decode after {prompt}"),
        };
        Item::new(what, "tokens/s")
    }

    /// Tokens that are timed.
    pub fn tokens(&self) -> usize {
        self.batch * if self.steps == 0 { self.prompt } else { self.steps }
    }
}

/// Any spread of tokens will do: the speed does not depend on them.
pub fn tokens(vocab_size: usize, first: usize, count: usize) -> Vec<u32> {
    let token = |i: usize| ((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % vocab_size as u64;
    (first..first + count).map(|i| token(i) as u32).collect()
}
