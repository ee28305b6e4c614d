//! The bits of grouped products, and offsets that are none.

use sinew_kernels::activation::Activation;
use sinew_kernels::gemm::{self, Gemm, GemmDynamic};
use sinew_kernels::grouped_gemm::{self, GroupedGemm, GroupedGemmDynamic};
use sinew_kernels::harness::case::{Case, Depth, HostOperands};
use sinew_kernels::{Error, Launch, Operands, Operator, Reference, Row};
use sinew_memory::{Buffer, Cpu, DeviceKind, SimdLevel};
use sinew_tensor::{DType, Layout, Tensor, View};

/// Runs a row on so many threads and gives the result's bytes as values.
fn run<O: Operator>(
    row: &Row<O>,
    threads: usize,
    fixed: &O::Static,
    call: &O::Dynamic,
    inputs: &[Option<View<'_>>],
    out: DType,
    shape: &[usize],
) -> Result<Vec<f64>, Error> {
    let device = Cpu::with(threads, SimdLevel::detected())?;
    let stream = device.clone().stream()?;
    let mut d = Tensor::zeros(&device, out, shape)?;
    let mut workspace = Buffer::uninitialised(&device, (row.workspace)(fixed, call, device.hardware()))?;
    let launch = Launch::new(&stream, Some(&mut workspace))?;
    row.launch(&launch, fixed, call, Operands { inputs, outputs: &[d.view_mut()?] })?;
    Ok(sinew_kernels::harness::case::decode(out, d.buffer().as_slice::<u8>()?))
}

fn views(host: &HostOperands) -> Vec<Option<View<'_>>> {
    host.inputs.iter().map(|input| input.as_ref().map(|input| input.tensor.view())).collect()
}

/// Cases on CPUs.
fn cases() -> Vec<Case<GroupedGemm>> {
    GroupedGemm::cases(Depth::Quick).into_iter().filter(|case| !case.fixed.format.is_row_major()).collect()
}

#[test]
fn a_row_has_the_same_bits_as_in_a_product_with_its_groups_weight_and_bias_alone_on_any_threads() {
    let hardware = Cpu::get().hardware().clone();
    let (mut compared, mut gathered, mut biased) = (0, 0, 0);
    for case in cases() {
        let (fixed, rows) = (&case.fixed, case.call.rows);
        let host = GroupedGemm::operands(&case).unwrap();
        let (product, columns) = (fixed.product(), fixed.product().columns());
        let offsets: Vec<usize> = host.input(GroupedGemm::OFFSETS).values.iter().map(|&at| at as usize).collect();
        for row in grouped_gemm::rows().iter().filter(|row| row.device == DeviceKind::CPU) {
            if (row.admits)(fixed, &hardware).is_err() {
                continue;
            }
            let shape = [rows, columns];
            let all = |threads| run(row, threads, fixed, &case.call, &views(&host), fixed.out, &shape).unwrap();
            let one = all(1);
            let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&one), bits(&all(3)), "{} {case}", row.name);
            let name = row.name.replace("grouped_", "");
            let alone = gemm::rows().into_iter().find(|other| other.name == name).unwrap();
            assert_eq!(alone.arithmetic, row.arithmetic);
            for (group, span) in offsets.windows(2).map(|of| of[0]..of[1]).enumerate() {
                let (a, b) = (&host.input(GroupedGemm::A).tensor, &host.input(GroupedGemm::B).tensor);
                let some = a.layout().narrow(0, span.start, span.len()).unwrap().unsqueeze(0).unwrap();
                let weight = Layout::strided(&[fixed.weight_bytes()], &[1], group * fixed.weight_bytes()).unwrap();
                let (a, b) = (a.with_layout(some).unwrap(), b.with_layout(weight).unwrap());
                let call = GemmDynamic { batch: 1, m: span.len() };
                let shape = [1, span.len(), columns];
                let order = host.inputs[GroupedGemm::ORDER].as_ref().map(|order| {
                    let one = Layout::strided(&[fixed.k], &[1], group * fixed.k).unwrap();
                    order.tensor.with_layout(one).unwrap()
                });
                let order = order.as_ref().map(Tensor::view);
                let bias = host.inputs[GroupedGemm::BIAS].as_ref().map(|bias| {
                    let all = bias.tensor.layout();
                    bias.tensor.with_layout(all.narrow(0, group, 1).unwrap().squeeze(0).unwrap()).unwrap()
                });
                let bias = bias.as_ref().map(Tensor::view);
                let inputs = [Some(a.view()), Some(b.view()), bias, None, None, None, order];
                let d = run::<Gemm>(&alone, 1, &product, &call, &inputs, fixed.out, &shape).unwrap();
                let of_group = &one[span.start * columns..span.end * columns];
                assert_eq!(bits(of_group), bits(&d), "{} {case}: group {group}", row.name);
                compared += d.len();
                gathered += if fixed.gathered { d.len() } else { 0 };
                biased += if fixed.bias.is_some() && fixed.gated == Some(Activation::SwigluOai) { d.len() } else { 0 };
            }
        }
    }
    assert!(compared > 10_000 && gathered > 1_000 && biased > 1_000, "{compared}, {gathered}, {biased}");
}

#[test]
fn offsets_that_do_not_share_out_the_rows_are_refused_and_nothing_is_written() {
    let case = cases().into_iter().find(|case| case.fixed.groups == 3 && case.call.rows == 40).unwrap();
    let host = GroupedGemm::operands(&case).unwrap();
    let shape = [40, case.fixed.product().columns()];
    for row in grouped_gemm::rows().iter().filter(|row| row.device == DeviceKind::CPU) {
        if (row.admits)(&case.fixed, Cpu::get().hardware()).is_err() {
            continue;
        }
        for offsets in [[1, 2, 3, 40], [0, 30, 20, 40], [0, 1, 2, 39], [0, 1, 2, 41], [0, -1, 2, 40], [0, 41, 41, 40]] {
            let offsets = Tensor::from_slice(&Cpu::get(), &offsets, &[4]).unwrap();
            let mut inputs = views(&host);
            inputs[GroupedGemm::OFFSETS] = Some(offsets.view());
            let call = GroupedGemmDynamic { rows: 40 };
            let error = run(row, 2, &case.fixed, &call, &inputs, case.fixed.out, &shape).unwrap_err().to_string();
            assert!(error.contains("offsets of 3 groups"), "{error}");
        }
    }
}

#[test]
fn biases_that_are_not_those_of_the_problem_are_refused() {
    let row = grouped_gemm::rows().into_iter().find(|row| row.name == "grouped_gemm.cpu.portable").unwrap();
    for biased in [false, true] {
        let is_it = |case: &&Case<GroupedGemm>| {
            case.fixed.bias.is_some() == biased && (row.admits)(&case.fixed, Cpu::get().hardware()).is_ok()
        };
        let (all, [mut wrong, mut missing]) = (cases(), [0; 2]);
        for case in all.iter().filter(is_it).take(8) {
            let (fixed, host) = (&case.fixed, GroupedGemm::operands(case).unwrap());
            let shape = [case.call.rows, fixed.product().columns()];
            let refused = |bias: Option<&Tensor>| {
                let mut inputs = views(&host);
                inputs[GroupedGemm::BIAS] = bias.map(Tensor::view);
                run(&row, 1, fixed, &case.call, &inputs, fixed.out, &shape).unwrap_err().to_string()
            };
            // Of another dtype, and of one weight alone.
            let other = if fixed.bias == Some(DType::F32) { DType::BF16 } else { DType::F32 };
            let dtype = fixed.bias.unwrap_or(DType::F32);
            for (dtype, sizes) in [(other, &[fixed.groups, fixed.n][..]), (dtype, &[fixed.n])] {
                let error = refused(Some(&Tensor::zeros(&Cpu::get(), dtype, sizes).unwrap()));
                let words = if biased { "the bias" } else { "the bias is given but not part of" };
                assert!(error.contains(words), "{error}");
                wrong += 1;
            }
            if biased {
                let error = refused(None);
                assert!(error.contains("the bias is missing from"), "{error}");
                missing += 1;
            }
        }
        assert!(wrong == 16 && (missing == 8) == biased);
    }
}

#[test]
fn a_group_without_rows_takes_no_memory_of_its_own() {
    // What a plan asks for grows with rows, not with groups.
    let case = cases().into_iter().find(|case| case.fixed.k == 600).unwrap();
    let hardware = Cpu::get().hardware().clone();
    for row in grouped_gemm::rows().iter().filter(|row| row.device == DeviceKind::CPU) {
        let of = |groups| {
            let fixed = grouped_gemm::GroupedGemmStatic { groups, ..case.fixed.clone() };
            (row.workspace)(&fixed, &GroupedGemmDynamic { rows: 8 }, &hardware)
        };
        assert_eq!(of(8), of(1 << 20), "{}", row.name);
    }
}
