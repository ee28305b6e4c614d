//! The reference of embedding, and the cases.

use sinew_tensor::DType;

use super::{Embedding, EmbeddingDynamic, EmbeddingStatic, IDS, TABLE, TableKind};
use crate::gemm::cases::packed;
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values, cut, host_operand};
use crate::packed::{Format, formats};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// A small table.
fn small(table: TableKind) -> (EmbeddingStatic, EmbeddingDynamic) {
    (EmbeddingStatic { width: 64, vocab: 70, table, out: DType::F32 }, EmbeddingDynamic { tokens: 3 })
}

impl Reference for Embedding {
    const COLD: &'static [usize] = &[super::TABLE];

    fn part(fixed: &EmbeddingStatic, bytes: usize) -> EmbeddingStatic {
        let row = match fixed.table {
            TableKind::Strided(dtype) => fixed.width * dtype.size(),
            TableKind::Packed(format) => format.packed_bytes(1, fixed.width, false),
        };
        EmbeddingStatic { vocab: fixed.vocab.min(bytes / row.max(1) + 1), ..fixed.clone() }
    }

    fn smaller(fixed: &EmbeddingStatic, call: EmbeddingDynamic) -> Option<(EmbeddingStatic, EmbeddingDynamic)> {
        let fixed = EmbeddingStatic { vocab: cut(fixed.vocab, 512), ..fixed.clone() };
        Some((fixed, EmbeddingDynamic { tokens: cut(call.tokens, 256) }))
    }

    fn stored_as(stored: StoredAs) -> Option<(EmbeddingStatic, EmbeddingDynamic)> {
        stored.plain().map(|dtype| small(TableKind::Strided(dtype)))
    }

    fn packed_as(format: &'static Format) -> Option<(EmbeddingStatic, EmbeddingDynamic)> {
        Some(small(TableKind::Packed(format)))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let formats = formats().map(TableKind::Packed);
        let kinds: Vec<TableKind> = DType::COMPUTE.into_iter().map(TableKind::Strided).chain(formats).collect();
        let sizes = [(1, 1), (7, 3), (33, 17), (5, 0), (64, 96), (100, 515), (31, 1030)];
        let tokens = [1, 0, 5, 40, 333];
        let values = [Values::Normal, Values::Special, Values::Integers, Values::Subnormal];
        let rounds = if depth == Depth::Quick { 1 } else { 8 };
        let mut cases = Vec::new();
        for round in 0..rounds {
            for (i, &(vocab, width)) in sizes.iter().enumerate() {
                for (j, &table) in kinds.iter().enumerate() {
                    let n = round * 41 + i * kinds.len() + j;
                    let fixed = EmbeddingStatic { width, vocab, table, out: DType::COMPUTE[(n / 2) % 3] };
                    cases.push(Case {
                        fixed,
                        call: EmbeddingDynamic { tokens: tokens[n % tokens.len()] },
                        lay: Lay::ALL[(n / 3) % Lay::ALL.len()],
                        values: values[(n / 4) % values.len()],
                        seed: n as u64,
                    });
                }
            }
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let EmbeddingStatic { width, vocab, table, out } = case.fixed;
        let mut random = Generator::new(case.seed);
        let tokens = case.call.tokens;
        let ids: Vec<f64> = (0..tokens).map(|_| random.below(vocab) as f64).collect();
        let id_dtype = [DType::U32, DType::I32, DType::I64][case.seed as usize % 3];
        // A repeated first id is a case as good as any.
        let ids = host_operand(id_dtype, &[tokens], case.lay, ids, false)?;
        let table = match table {
            TableKind::Strided(dtype) => random.operand(dtype, &[vocab, width], case.lay, case.values)?,
            TableKind::Packed(format) => packed(&mut random, format, [vocab, width], false, case.values)?,
        };
        let out = random.output(out, &[tokens, width], case.lay)?;
        Ok(HostOperands { inputs: vec![Some(ids), Some(table)], outputs: vec![out] })
    }

    /// The value of the table, rounded to the result's type: exact.
    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let id = host.input(IDS).at(&index[..1]) as usize;
        let value = host.input(TABLE).at(&[id, index[1]]);
        Expected::exact(case.fixed.out.round(value))
    }
}
