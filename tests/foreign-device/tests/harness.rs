//! The accuracy harness and the table of support on a foreign device, and the harness itself: rows that are broken on
//! purpose must fail.

#[path = "../../common/support.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use half::{bf16, f16};
use sinew_foreign_device::{CausalSum, CausalSumCall, CausalSumStatic, KIND, Lagging, register};
use sinew_kernels::harness::accuracy::RowReport;
use sinew_kernels::harness::case::Depth;
use sinew_kernels::simd::Stored;
use sinew_kernels::support::{StoredAs, Support};
use sinew_kernels::{AnyTable, Arithmetic, Launch, Operands, Operator, Registry, Result, Row, Table};
use sinew_memory::{Cpu, DeviceKind, SimdLevel};
use sinew_tensor::DType;

#[test]
fn every_row_of_the_foreign_device_passes_the_harness() {
    let device = Lagging::new(0, Duration::from_micros(100));
    let mut registry = Registry::standard();
    register(&mut registry);
    let mut found = Vec::new();
    for table in registry.tables() {
        for report in table.verify(&device, Depth::Quick) {
            let RowReport { row, cases, elements, compared, worst, .. } = report;
            println!("{row:28} {cases:5} cases {elements:7} elements {compared:4} compared, worst {worst:.3}");
            assert!(report.failures.is_empty(), "{row}:\n{}", report.failures.join("\n"));
            assert!(cases > 0, "{row} ran no case");
            assert!(!row.starts_with("binary") || row.ends_with("forward") || compared == cases);
            found.push(row);
        }
    }
    let names: Vec<_> = registry.tables().flat_map(AnyTable::row_names).filter(|(_, kind, _)| *kind == KIND).collect();
    assert_eq!(found.len(), names.len());
    assert_eq!(found.len(), 5);
}

#[test]
fn what_the_table_claims_of_a_foreign_device_runs_there() {
    let device = Lagging::new(0, Duration::from_micros(100));
    let mut registry = Registry::standard();
    register(&mut registry);
    let [supported, refused] = support::agrees_with_what_runs(&registry, &device);
    assert!(supported >= 5 && refused > supported, "{supported} and {refused}");
    let support = Support::of(&registry, [&Cpu::get(), &device]);
    let (name, cells) = &support.devices[1];
    assert_eq!(*name, device.id().to_string());
    let said = |operator: &str, dtype| {
        let cell = cells.iter().find(|cell| cell.operator == operator && cell.stored == StoredAs::Plain(dtype));
        cell.is_some_and(|cell| cell.is_supported())
    };
    let text = support.to_string();
    for (operator, dtype, is_said) in
        [("binary", DType::F32, true), ("binary", DType::I64, false), ("softmax", DType::F32, false)]
    {
        assert_eq!(said(operator, dtype), is_said, "{operator} of {dtype}: {text}");
    }
    let lines = || text.lines().filter(|line| line.contains("lagging:0"));
    assert!(lines().any(|line| line.starts_with("binary ") && line.contains("yes")), "{text}");
    assert!(lines().any(|line| line.starts_with("softmax ") && !line.contains("yes")), "{text}");
}

/// What a row of [`CausalSum`] gets wrong.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Fault {
    None,
    /// The last of sixteen lanes is not added.
    DropsLastLane,
    /// Elements behind the last whole vector are not added.
    IgnoresRaggedTail,
    /// Elements behind the last whole vector are not written.
    LeavesRaggedTail,
    /// The mask lets one element too many through.
    MaskOneTooMany,
    /// The mask takes one element too many away.
    MaskOneTooFew,
    /// A row that is masked whole gives NaN, as 0 / 0 would.
    MaskedRowIsNan,
    /// The sum runs backward under the name of an arithmetic in which it runs forward.
    OtherOrder,
    /// One element behind the last of each row is written.
    WritesOutside,
    /// The sum is one unit in the last place too large: within the bound, and not exact for integers.
    NotExact,
    /// NaN counts as nothing.
    SwallowsNan,
    /// The sum is kept in the dtype.
    SumsInLowPrecision,
    /// The last row is forgotten.
    SkipsLastRow,
    /// Elements are read as if rows followed one another without gaps.
    IgnoresStrides,
    /// Says so instead of working.
    Refuses,
}

impl Fault {
    const ALL: [Self; 15] = [
        Self::None,
        Self::DropsLastLane,
        Self::IgnoresRaggedTail,
        Self::LeavesRaggedTail,
        Self::MaskOneTooMany,
        Self::MaskOneTooFew,
        Self::MaskedRowIsNan,
        Self::OtherOrder,
        Self::WritesOutside,
        Self::NotExact,
        Self::SwallowsNan,
        Self::SumsInLowPrecision,
        Self::SkipsLastRow,
        Self::IgnoresStrides,
        Self::Refuses,
    ];
}

const LANES: usize = 16;

/// One row of `n` elements, `step` apart; `row` is its number.
unsafe fn causal_row<T: Stored>(fault: Fault, x: *const T, y: *mut T, row: usize, n: usize, steps: [usize; 2]) {
    let whole = n - n % LANES;
    // SAFETY: the caller names `n` elements of both; a faulty row writes one more, which the test's buffers have.
    let at = |i: usize| unsafe { (*x.add(i * steps[0])).widen() };
    let mask = match fault {
        Fault::MaskOneTooMany => (row + 1).min(n),
        Fault::MaskOneTooFew => row.saturating_sub(1).min(n),
        _ => row.min(n),
    };
    let mut sum = 0.0f32;
    let order: Vec<usize> = if fault == Fault::OtherOrder { (0..mask).rev().collect() } else { (0..mask).collect() };
    for i in order {
        let dropped = match fault {
            Fault::DropsLastLane => i % LANES == LANES - 1,
            Fault::IgnoresRaggedTail => i >= whole,
            Fault::SwallowsNan => at(i).is_nan(),
            _ => false,
        };
        if !dropped {
            sum += at(i);
        }
        if fault == Fault::SumsInLowPrecision {
            sum = T::narrow(sum).widen();
        }
    }
    if fault == Fault::NotExact {
        sum *= 1.0 + f32::EPSILON;
    }
    if fault == Fault::MaskedRowIsNan && mask == 0 {
        sum = f32::NAN;
    }
    for i in 0..n {
        if fault == Fault::LeavesRaggedTail && i >= whole {
            break;
        }
        // SAFETY: as above.
        unsafe { *y.add(i * steps[1]) = T::narrow(at(i) + sum) };
    }
    if fault == Fault::WritesOutside && n > 0 {
        // SAFETY: every buffer of the harness has elements to spare behind the last.
        unsafe { *y.add((n - 1) * steps[1] + 1) = T::narrow(1.0) };
    }
}

unsafe fn run<const FAULT: usize>(
    launch: &Launch<'_>,
    fixed: &CausalSumStatic,
    call: &CausalSumCall,
    operands: Operands<'_>,
) -> Result<()> {
    let fault = Fault::ALL[FAULT];
    if fault == Fault::Refuses {
        return Err(sinew_kernels::Error::Operands { operator: CausalSum::NAME, reason: "not today".into() });
    }
    launch.team()?;
    let x = operands.input(CausalSum::NAME, CausalSum::X, "x")?;
    let y = operands.output(CausalSum::NAME, CausalSum::Y, "y")?;
    let (from, to, size) = (x.host_ptr()?, y.host_ptr()?, fixed.dtype.size());
    let rows = call.rows - usize::from(fault == Fault::SkipsLastRow && call.rows > 0);
    // Where that still stays inside the operand: nothing here may read what is not its own.
    let reach = call.rows.saturating_sub(1) * call.width + call.width.saturating_sub(1) * x.strides()[1] + 1;
    let ignores = fault == Fault::IgnoresStrides && x.layout().offset() + reach <= x.layout().end();
    let x_stride = if ignores { call.width } else { x.strides()[0] };
    for row in 0..rows {
        let x_row = from.wrapping_add(row * x_stride * size);
        let y_row = to.wrapping_add(row * y.strides()[0] * size);
        let steps = [x.strides()[1], y.strides()[1]];
        // SAFETY: the operator's check has seen shapes and dtypes; a mistaken stride was seen to stay inside.
        unsafe {
            match fixed.dtype {
                DType::F32 => causal_row::<f32>(fault, x_row.cast(), y_row.cast(), row, call.width, steps),
                DType::F16 => causal_row::<f16>(fault, x_row.cast(), y_row.cast(), row, call.width, steps),
                _ => causal_row::<bf16>(fault, x_row.cast(), y_row.cast(), row, call.width, steps),
            }
        }
    }
    Ok(())
}

fn row<const FAULT: usize>(name: &'static str) -> Row<CausalSum> {
    Row {
        name,
        device: DeviceKind::CPU,
        // Under an arithmetic of its own a row is held against the reference alone.
        arithmetic: Arithmetic::named(if FAULT == Fault::NotExact as usize {
            "causal_sum.up"
        } else {
            "causal_sum.chain"
        }),
        admits: |_, _| Ok(()),
        cost: |_, _, _| 1e-6,
        workspace: |_, _, _| 0,
        run: run::<FAULT>,
    }
}

/// The reports of an honest row and of a faulty one beside it.
fn verify<const FAULT: usize>() -> [RowReport; 2] {
    let table = Table::new(vec![row::<0>("causal_sum.honest"), row::<FAULT>("causal_sum.other")]);
    let device = Cpu::with(1, SimdLevel::Portable).unwrap();
    let reports: Vec<RowReport> = table.verify(&device, Depth::Quick);
    reports.try_into().unwrap()
}

fn fails<const FAULT: usize>(with: &str) {
    let [honest, faulty] = verify::<FAULT>();
    assert_eq!(honest.failures, Vec::<String>::new());
    assert!(faulty.failures.iter().any(|line| line.contains(with)), "{with} not in {:#?}", faulty.failures);
}

#[test]
fn an_honest_row_passes_and_is_compared() {
    let [honest, other] = verify::<0>();
    assert_eq!((&honest.failures, &other.failures), (&Vec::new(), &Vec::new()));
    assert!(honest.cases >= 90 && honest.elements > 10_000, "{honest:?}");
    assert_eq!((honest.compared, other.compared), (0, other.cases));
    assert!(honest.worst <= 1.0, "{honest:?}");
}

#[test]
fn a_dropped_last_lane_fails() {
    fails::<1>("reference");
}

#[test]
fn a_ragged_tail_that_is_not_summed_fails() {
    fails::<2>("reference");
}

#[test]
fn a_ragged_tail_that_is_not_written_fails() {
    fails::<3>("is NaN, reference");
}

#[test]
fn a_mask_off_by_one_fails_either_way() {
    fails::<4>("reference");
    fails::<5>("reference");
}

#[test]
fn a_fully_masked_row_that_is_not_zero_fails() {
    fails::<6>("at [0, 0] is NaN, reference");
}

#[test]
fn other_bits_under_the_same_arithmetic_fail() {
    fails::<7>("bits differ from causal_sum.honest, which has the same arithmetic");
    let [_, faulty] = verify::<7>();
    let only_bits = faulty.failures.iter().all(|line| line.contains("bits differ"));
    assert!(only_bits, "the order alone is within every bound: {:#?}", faulty.failures);
}

#[test]
fn a_write_outside_the_view_fails() {
    fails::<8>("was written outside its view");
}

#[test]
fn integers_that_are_not_exact_fail() {
    fails::<9>("Integers");
}

#[test]
fn a_swallowed_nan_fails() {
    fails::<10>("reference NaN");
}

#[test]
fn a_sum_in_low_precision_fails() {
    fails::<11>("reference");
}

#[test]
fn a_forgotten_row_fails() {
    fails::<12>("is NaN, reference");
}

#[test]
fn a_row_that_ignores_strides_fails() {
    fails::<13>("reference");
}

#[test]
fn a_row_that_returns_an_error_fails() {
    fails::<14>("causal_sum: not today");
}

#[test]
fn a_row_that_never_ran_is_seen_in_its_count_of_cases() {
    let refuses = Row { admits: |_, _| Err("never".into()), ..row::<0>("causal_sum.never") };
    let device = Cpu::with(1, SimdLevel::Portable).unwrap();
    let reports = Table::new(vec![refuses]).verify(&device, Depth::Quick);
    assert_eq!((reports[0].cases, reports[0].failures.len()), (0, 0));
    let _: Arc<dyn sinew_memory::Device> = device;
}
