//! What devices keep: formats of weights and dtypes of caches, asked of the rows that read them.

use sinew_memory::Hardware;
use sinew_tensor::DType;

use crate::attention::{Attention, AttentionStatic, OldKv};
use crate::gemm::Gemm;
use crate::harness::case::Reference;
use crate::kv_append::KvAppend;
use crate::operator::Operator;
use crate::packed::{Encoding, Format};
use crate::registry::Registry;
use crate::support::stored::StoredAs;

impl Registry {
    /// Whether a row takes a problem on this hardware.
    ///
    /// ```
    /// use sinew_kernels::Registry;
    /// use sinew_kernels::reduce::{Reduce, ReduceFunction, ReduceStatic};
    /// use sinew_memory::Cpu;
    /// use sinew_tensor::DType;
    ///
    /// let sum = |output| ReduceStatic { function: ReduceFunction::Sum, input: DType::F32, output, dims: 1 };
    /// let supports = |fixed| Registry::standard().supports::<Reduce>(&fixed, Cpu::get().hardware());
    /// assert!(supports(sum(DType::F32)) && !supports(sum(DType::Bool)));
    /// ```
    pub fn supports<O: Operator>(&self, fixed: &O::Static, hardware: &Hardware) -> bool {
        O::defined(fixed).is_ok() && self.table::<O>().is_ok_and(|table| table.takes(fixed, hardware))
    }

    /// The format in which such a device keeps weights in an encoding, if there is one: that in which a row multiplies
    /// them.
    ///
    /// ```
    /// use sinew_kernels::Registry;
    /// use sinew_kernels::packed::BF16;
    /// use sinew_memory::Cpu;
    /// use sinew_tensor::DType;
    ///
    /// let format = |dtype: DType| Registry::standard().format(dtype, Cpu::get().hardware());
    /// assert_eq!(format(DType::BF16), Some(&BF16));
    /// assert_eq!(format(DType::I64), None);
    /// ```
    pub fn format(&self, encoding: impl Into<Encoding>, hardware: &Hardware) -> Option<&'static Format> {
        Format::of(encoding)
            .find(|format| Gemm::packed_as(format).is_some_and(|(fixed, _)| self.supports::<Gemm>(&fixed, hardware)))
    }

    /// Whether rows append keys and values of this dtype to the blocks of a cache on such a device, and attend to them;
    /// and to older ones in a form of their own, if there are any.
    pub fn keeps_kv(&self, kv: DType, old: Option<OldKv>, hardware: &Hardware) -> bool {
        let attends = Attention::stored_as(StoredAs::Plain(kv))
            .is_some_and(|(fixed, _)| self.supports::<Attention>(&AttentionStatic { old, ..fixed }, hardware));
        let appends = |dtype| {
            let problem = KvAppend::stored_as(StoredAs::Plain(dtype));
            problem.is_some_and(|(fixed, _)| self.supports::<KvAppend>(&fixed, hardware))
        };
        attends && appends(kv) && old.is_none_or(|old| appends(old.dtype))
    }
}
