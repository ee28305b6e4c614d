//! Strided copies that are larger than a tile.

use sinew_kernels::cast::{self, CastStatic};
use sinew_kernels::elementwise::Elements;
use sinew_kernels::{Launch, Operands};
use sinew_memory::Cpu;
use sinew_tensor::{DType, Tensor};

#[test]
fn large_transposed_copies_are_exact_in_every_size_of_element() {
    let device = Cpu::get();
    let stream = device.clone().stream().unwrap();
    for dtype in [DType::U8, DType::BF16, DType::F32, DType::I64] {
        let shape = [3, 67, 131];
        let bytes: Vec<u8> = (0..3 * 67 * 131 * dtype.size()).map(|i| (i * 7 % 251) as u8).collect();
        let x = Tensor::from_bytes(&device, &bytes, dtype, &shape).unwrap();
        let turned = x.with_layout(x.layout().transpose(1, 2).unwrap()).unwrap();
        let mut y = Tensor::zeros(&device, dtype, turned.shape()).unwrap();
        let row = cast::rows().into_iter().find(|row| row.name == "cast.cpu.copy").unwrap();
        let fixed = CastStatic { input: dtype, output: dtype };
        let launch = Launch::new(&stream, None).unwrap();
        let (inputs, outputs) = ([Some(turned.view())], [y.view_mut().unwrap()]);
        let operands = Operands { inputs: &inputs, outputs: &outputs };
        row.launch(&launch, &fixed, &Elements(3 * 67 * 131), operands).unwrap();
        let got = y.buffer().as_slice::<u8>().unwrap();
        let size = dtype.size();
        for (i, at) in turned.layout().indices().enumerate() {
            assert_eq!(got[i * size..(i + 1) * size], bytes[at * size..(at + 1) * size], "{dtype} element {i}");
        }
    }
}
