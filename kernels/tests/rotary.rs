//! Rotary rows against their reference, and what holds for them beyond it.

use std::sync::Arc;

use sinew_kernels::harness::accuracy;
use sinew_kernels::harness::case::{Depth, Generator};
use sinew_kernels::rotary::{self, Rotary, RotaryDynamic, RotaryStatic, Style, Table as Angles};
use sinew_kernels::{Launch, Operands, Row, Table};
use sinew_memory::{Cpu, Device, SimdLevel};
use sinew_tensor::{DType, Element, Layout, Tensor, View, ViewMut};

/// Rows that run on a device.
fn rows(device: &Arc<dyn Device>, fixed: &RotaryStatic) -> Vec<Row<Rotary>> {
    let table = Table::new(rotary::rows());
    let (rows, _) = table.candidates(fixed, device.hardware());
    rows.into_iter().copied().collect()
}

/// Turns `x` in place.
fn turn(row: &Row<Rotary>, device: &Arc<dyn Device>, fixed: &RotaryStatic, x: &mut Tensor, rest: [&Tensor; 3]) {
    launch(row, device, fixed, x, rest).unwrap();
}

fn launch(
    row: &Row<Rotary>,
    device: &Arc<dyn Device>,
    fixed: &RotaryStatic,
    x: &mut Tensor,
    [positions, cos, sin]: [&Tensor; 3],
) -> sinew_kernels::Result<()> {
    let stream = device.clone().stream()?;
    let call = RotaryDynamic { tokens: x.shape()[0], heads: x.shape()[1] };
    let inputs = [None, Some(positions.view()), Some(cos.view()), Some(sin.view())];
    let operands = Operands { inputs: &inputs, outputs: &[x.view_mut()?] };
    row.launch(&Launch::new(&stream, None)?, fixed, &call, operands)
}

fn in_place(head_dim: usize, style: Style, dtype: DType) -> RotaryStatic {
    RotaryStatic { head_dim, rotary_dim: head_dim, style, x: dtype, out: dtype, in_place: true }
}

/// Rows with a mistake each: the harness must see every one.
mod broken {
    use super::*;

    type Outcome = sinew_kernels::Result<()>;

    /// Runs the portable row with other inputs.
    ///
    /// # Safety
    /// That of [`Row::run`], the inputs being of the shapes and dtypes that the problem asks for.
    unsafe fn with(
        launch: &Launch<'_>,
        fixed: &RotaryStatic,
        call: &RotaryDynamic,
        inputs: [Option<View<'_>>; 4],
        outputs: &[ViewMut<'_>],
    ) -> Outcome {
        // SAFETY: passed on.
        unsafe { (rotary::rows()[0].run)(launch, fixed, call, Operands { inputs: &inputs, outputs }) }
    }

    /// The operand with every value changed.
    fn changed<T: Element>(view: &View<'_>, change: impl Fn(f64) -> f64) -> Tensor {
        let tensor = Tensor::new(view.buffer().clone(), view.dtype(), *view.layout()).unwrap();
        let values: Vec<T> =
            tensor.to_vec::<T>().unwrap().into_iter().map(|x| T::from_f64(change(x.to_f64()))).collect();
        Tensor::from_slice(&Cpu::get(), &values, tensor.shape()).unwrap()
    }

    /// Turns the other way.
    pub unsafe fn sign(l: &Launch<'_>, fixed: &RotaryStatic, call: &RotaryDynamic, o: Operands<'_>) -> Outcome {
        let sin = changed::<f32>(&o.inputs[rotary::SIN].unwrap(), |x| -x);
        let inputs = [o.inputs[0], o.inputs[1], o.inputs[2], Some(sin.view())];
        // SAFETY: the operands have passed the check, and the table keeps its shape.
        unsafe { with(l, fixed, call, inputs, o.outputs) }
    }

    /// Takes every token for the one before.
    pub unsafe fn position(l: &Launch<'_>, fixed: &RotaryStatic, call: &RotaryDynamic, o: Operands<'_>) -> Outcome {
        let positions = changed::<i32>(&o.inputs[rotary::POSITIONS].unwrap(), |x| (x - 1.0).max(0.0));
        let inputs = [o.inputs[0], Some(positions.view()), o.inputs[2], o.inputs[3]];
        // SAFETY: the operands have passed the check, and the positions stay inside the tables.
        unsafe { with(l, fixed, call, inputs, o.outputs) }
    }

    /// Leaves the last pair as it is.
    pub unsafe fn last_pair(l: &Launch<'_>, fixed: &RotaryStatic, call: &RotaryDynamic, o: Operands<'_>) -> Outcome {
        let less = fixed.rotary_dim.saturating_sub(2);
        let fixed = RotaryStatic { rotary_dim: less, ..*fixed };
        // The row reads no more of the tables than it has pairs.
        let inputs = [o.inputs[0], o.inputs[1], o.inputs[2], o.inputs[3]];
        // SAFETY: the operands have passed the check, and the row touches a part of what they name.
        unsafe { with(l, &fixed, call, inputs, o.outputs) }
    }

    /// Takes one style for the other.
    pub unsafe fn style(l: &Launch<'_>, fixed: &RotaryStatic, call: &RotaryDynamic, o: Operands<'_>) -> Outcome {
        let style = if fixed.style == Style::Half { Style::Interleaved } else { Style::Half };
        let inputs = [o.inputs[0], o.inputs[1], o.inputs[2], o.inputs[3]];
        // SAFETY: the operands have passed the check, and fit the other style too.
        unsafe { with(l, &RotaryStatic { style, ..*fixed }, call, inputs, o.outputs) }
    }
}

#[test]
fn broken_rows_are_seen() {
    let device = Cpu::with(1, SimdLevel::Portable).unwrap();
    let good = rotary::rows()[0];
    let rows = [
        Row { name: "sign", run: broken::sign, ..good },
        Row { name: "position", run: broken::position, ..good },
        Row { name: "last pair", run: broken::last_pair, ..good },
        Row { name: "style", run: broken::style, ..good },
    ];
    for row in rows {
        // Alone, so that it is compared with the reference only.
        let report = &accuracy::verify(&[row], &device, Depth::Quick)[0];
        assert!(!report.failures.is_empty(), "{}", row.name);
        assert!(report.failures[0].contains("reference"), "{}", report.failures[0]);
        println!("{}: {}", row.name, report.failures[0]);
    }
}

#[test]
fn the_last_of_131_072_positions_is_right_end_to_end() {
    let (positions, head_dim, heads) = (131_072, 128, 3);
    let inv_freq: Vec<f64> = (0..64).map(|i| 500_000f64.powf(-f64::from(i) / 64.0)).collect();
    let angles = Angles::build(&inv_freq, 1.0, positions);
    let host = Cpu::get();
    let cos = Tensor::from_slice(&host, &angles.cos, &[positions, 64]).unwrap();
    let sin = Tensor::from_slice(&host, &angles.sin, &[positions, 64]).unwrap();
    let last = positions - 1;
    let at = Tensor::from_slice(&host, &[last as i32], &[1]).unwrap();
    let mut generator = Generator::new(1);
    let values: Vec<f32> = (0..heads * head_dim).map(|_| generator.normal() as f32).collect();
    for style in [Style::Half, Style::Interleaved] {
        let fixed = in_place(head_dim, style, DType::F32);
        for row in rows(&host, &fixed) {
            let mut x = Tensor::from_slice(&host, &values, &[1, heads, head_dim]).unwrap();
            turn(&row, &host, &fixed, &mut x, [&at, &cos, &sin]);
            let got = x.to_vec::<f32>().unwrap();
            for head in 0..heads {
                for (i, freq) in inv_freq.iter().enumerate() {
                    let (first, second) = match style {
                        Style::Half => (i, i + 64),
                        Style::Interleaved => (2 * i, 2 * i + 1),
                    };
                    let (first, second) = (head * head_dim + first, head * head_dim + second);
                    let (a, b) = (f64::from(values[first]), f64::from(values[second]));
                    let (s, c) = (last as f64 * freq).sin_cos();
                    // Four ulp of the arithmetic, and half an ulp of 1 for each table.
                    let larger = a.abs().max(b.abs());
                    let bound = 4.0 * DType::F32.ulp(larger) + larger * f64::from(f32::EPSILON) / 2.0;
                    for (got, want) in [(got[first], a * c - b * s), (got[second], b * c + a * s)] {
                        let error = (f64::from(got) - want).abs();
                        assert!(error <= bound, "{}: pair {i}: {got:e}, exact {want:e}", row.name);
                    }
                }
            }
        }
    }
}

#[test]
fn positions_outside_the_tables_are_refused_before_anything_is_written() {
    let host = Cpu::get();
    let angles = Angles::build(&[1.0, 0.5], 1.0, 7);
    let cos = Tensor::from_slice(&host, &angles.cos, &[7, 2]).unwrap();
    let sin = Tensor::from_slice(&host, &angles.sin, &[7, 2]).unwrap();
    let fixed = in_place(4, Style::Half, DType::F32);
    for row in rows(&host, &fixed) {
        for bad in [7, -1, i32::MIN, i32::MAX] {
            let mut x = Tensor::from_slice(&host, &[1f32; 8], &[2, 1, 4]).unwrap();
            let positions = Tensor::from_slice(&host, &[6, bad], &[2]).unwrap();
            let error = launch(&row, &host, &fixed, &mut x, [&positions, &cos, &sin]).unwrap_err().to_string();
            assert!(error.contains(&format!("token 1 is at position {bad}")), "{error}");
            assert_eq!(x.to_vec::<f32>().unwrap(), [1f32; 8]);
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let host = Cpu::get();
    let tensor = |shape: &[usize]| Tensor::zeros(&host, DType::F32, shape).unwrap();
    let positions = Tensor::zeros(&host, DType::I32, &[2]).unwrap();
    let fixed = in_place(4, Style::Half, DType::F32);
    let row = rotary::rows()[0];
    let good = tensor(&[7, 2]);
    let refuses = |fixed: &RotaryStatic, mut x: Tensor, rest: [&Tensor; 3], words: &str| {
        let error = launch(&row, &host, fixed, &mut x, rest).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refuses(&fixed, tensor(&[2, 1, 6]), [&positions, &good, &good], "out is f32 shape [2, 1, 6]");
    refuses(&fixed, tensor(&[3, 1, 4]), [&positions, &good, &good], "positions is i32 shape [2]");
    refuses(&fixed, tensor(&[2, 1, 4]), [&tensor(&[2]), &good, &good], "positions is f32");
    refuses(&fixed, tensor(&[2, 1, 4]), [&positions, &tensor(&[7, 1]), &good], "cos is f32");
    refuses(&fixed, tensor(&[2, 1, 4]), [&positions, &good, &tensor(&[6, 2])], "sin is f32");
    let odd = RotaryStatic { rotary_dim: 3, ..fixed };
    refuses(&odd, tensor(&[2, 1, 4]), [&positions, &good, &good], "rotary_dim is 3");
    let wide = RotaryStatic { rotary_dim: 6, ..fixed };
    refuses(&wide, tensor(&[2, 1, 4]), [&positions, &good, &good], "rotary_dim is 6");
    let mixed = RotaryStatic { x: DType::F16, ..fixed };
    refuses(&mixed, tensor(&[2, 1, 4]), [&positions, &good, &good], "in place");
    let elsewhere = RotaryStatic { in_place: false, ..fixed };
    refuses(&elsewhere, tensor(&[2, 1, 4]), [&positions, &good, &good], "x (input 0) is missing");
}

/// Queries inside a fused projection are turned as they lie, on any number of threads, alone or with other tokens.
#[test]
fn a_token_turns_alike_alone_and_among_others() {
    let (tokens, heads, head_dim, width) = (23, 9, 80, 9 * 80 + 2 * 160);
    let inv_freq: Vec<f64> = (0..40).map(|i| 10_000f64.powf(-f64::from(i) / 40.0)).collect();
    let angles = Angles::build(&inv_freq, 1.0, 100);
    let host = Cpu::get();
    let cos = Tensor::from_slice(&host, &angles.cos, &[100, 40]).unwrap();
    let sin = Tensor::from_slice(&host, &angles.sin, &[100, 40]).unwrap();
    let mut generator = Generator::new(3);
    let values: Vec<f32> = (0..tokens * width).map(|_| generator.normal() as f32).collect();
    let positions: Vec<i32> = (0..tokens as i32).map(|i| 97 - 4 * i).collect();
    for style in [Style::Half, Style::Interleaved] {
        let fixed = in_place(head_dim, style, DType::F32);
        for row in rows(&host, &fixed) {
            let run = |threads: usize, from: usize, tokens: usize| {
                let device = Cpu::with(threads, SimdLevel::detected()).unwrap();
                let layout = Layout::strided(&[tokens, heads, head_dim], &[width, head_dim, 1], 0).unwrap();
                let part = &values[from * width..(from + tokens) * width];
                let x = Tensor::from_slice(&device, part, &[part.len()]).unwrap();
                let mut view = x.with_layout(layout).unwrap();
                drop(x);
                let at = Tensor::from_slice(&device, &positions[from..from + tokens], &[tokens]).unwrap();
                turn(&row, &device, &fixed, &mut view, [&at, &cos, &sin]);
                view.with_layout(Layout::contiguous(&[tokens * width]).unwrap()).unwrap().to_vec::<f32>().unwrap()
            };
            let all = run(1, 0, tokens);
            assert_eq!(all, run(3, 0, tokens), "{}", row.name);
            for token in [0, 1, tokens - 1] {
                assert_eq!(all[token * width..(token + 1) * width], run(2, token, 1), "{}", row.name);
            }
            // Keys and values behind the queries stay as they were.
            assert_eq!(all[heads * head_dim..width], values[heads * head_dim..width]);
        }
    }
}

#[test]
fn the_widest_row_is_predicted_to_be_the_fastest() {
    let fixed = in_place(128, Style::Half, DType::BF16);
    let device = Cpu::get();
    for call in [RotaryDynamic { tokens: 1, heads: 8 }, RotaryDynamic { tokens: 4096, heads: 32 }] {
        let costs: Vec<f64> =
            rows(&device, &fixed).iter().map(|row| (row.cost)(&fixed, &call, device.hardware())).collect();
        assert!(costs.is_sorted_by(|a, b| a > b), "{costs:?}");
    }
    assert!(rows(&device, &fixed).len() <= 3);
}
