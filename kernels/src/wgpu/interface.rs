//! What a kernel's body may name: constants, operands, parameters and walks. The text declares them, and a pipeline is
//! known by them.

use sinew_memory::webgpu::MAX_PARAMS;
use sinew_tensor::DType;

use super::call::Few;
use crate::Result;

/// The most of each that a call has: what WebGPU promises to bind, with what is left out or shares a binding; a few words
/// of options; and two orders of elements.
pub(super) const MOST_OPERANDS: usize = 12;
const MOST_OPTIONS: usize = 24;
const MOST_WALKS: usize = 2;
/// Words of a pipeline's key: options, operands, ranks of walks, the text and whether it reports.
const KEY: usize = MOST_OPTIONS + MOST_OPERANDS + MOST_WALKS + 4;

/// An operand as the text sees it.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) name: &'static str,
    /// `None` where the operand is absent.
    pub(super) dtype: Option<DType>,
    pub(super) written: bool,
    /// Bound as vectors of four words.
    pub(super) quads: bool,
    /// The number of its first binding, which operands of one buffer share, and how many it has.
    pub(super) slot: usize,
    pub(super) windows: usize,
    /// Whether the words of the binding are atomic: where any operand in it is written in less than words.
    pub(super) atomic: bool,
}

impl Operand {
    /// One that is absent.
    pub(super) const ABSENT: Self =
        Self { name: "", dtype: None, written: false, quads: false, slot: 0, windows: 0, atomic: false };

    /// All of it that the text depends on, but for the name.
    fn code(&self) -> u32 {
        let dtype = self.dtype.map_or(0, |dtype| 1 + dtype as u32);
        let flags = [self.written, self.quads, self.atomic].into_iter().fold(0, |all, flag| all << 1 | u32::from(flag));
        (self.windows as u32) << 24 | dtype << 16 | flags << 8 | self.slot as u32
    }
}

/// Dimensions of a walk, and the operands that it goes over.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub(super) rank: usize,
    pub(super) operands: [&'static str; 4],
}

/// A parameter's name: its own, or that of a walk's sizes and strides.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Plain(&'static str),
    Base(&'static str),
    Size(&'static str, usize),
    Stride(&'static str, usize),
}

/// What a call gives the body of its kernel.
pub(super) struct Interface {
    pub(super) body: &'static str,
    pub(super) options: Few<(&'static str, u32), MOST_OPTIONS>,
    pub(super) operands: Few<Operand, MOST_OPERANDS>,
    pub(super) params: Few<Name, MAX_PARAMS>,
    pub(super) walks: Few<Option<Steps>, MOST_WALKS>,
    /// What the kernel may report, in words.
    pub(super) reports: Option<&'static str>,
}

impl Interface {
    /// That of a body alone.
    pub(super) fn new(body: &'static str) -> Self {
        Self {
            body,
            options: Few::new(("", 0)),
            operands: Few::new(Operand::ABSENT),
            params: Few::new(Name::Plain("")),
            walks: Few::new(None),
            reports: None,
        }
    }

    /// What the text of a kernel of a name is told from its others by.
    pub(super) fn key(&self, kernel: &'static str) -> Result<Few<u32, KEY>> {
        let mut key = Few::new(0);
        let options = self.options.iter().map(|&(_, value)| value);
        let operands = self.operands.iter().map(Operand::code);
        let walks = self.walks.iter().flatten().map(|walk| walk.rank as u32);
        // A body is told from another by where it stands: each is a constant of this program.
        let (place, length) = (self.body.as_ptr() as u64, self.body.len() as u32);
        let text = [place as u32, (place >> 32) as u32, length, u32::from(self.reports.is_some())];
        options.chain(operands).chain(walks).chain(text).try_for_each(|word| key.push(kernel, word))?;
        Ok(key)
    }
}
