use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

const INDICES: [DType; 3] = [DType::U32, DType::I32, DType::I64];

#[test]
fn embedding_takes_ids_and_tables_of_every_layout() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for ids_shape in [&[5][..], &[2, 3], &[3, 1, 4], &[], &[0]] {
        for lay in Lay::ALL {
            for table_lay in Lay::ALL {
                turn += 1;
                let ids = operand(&ctx, INDICES[turn % 3], ids_shape, lay, |i| {
                    (number(turn, i) * 7.0).abs().floor().min(10.0)
                });
                let table = random(&ctx, DType::COMPUTE[turn % 3], &[11, 17], table_lay, turn);
                let (ih, th) = (Host::of(&ctx, &ids), Host::of(&ctx, &table));
                let shape: Vec<usize> = ids_shape.iter().copied().chain([17]).collect();
                let want = Host::build(&shape, |i| {
                    let (&column, token) = i.split_last().unwrap();
                    th.at(&[ih.at(token) as usize, column])
                });
                let y = embedding(&ctx, &ids, &table).unwrap();
                assert_close(&ctx, &y, &want, 0.0, 0.0, "embedding");
                let mut y = output(&ctx, DType::COMPUTE[turn / 3 % 3], &shape, Lay::OUTPUTS[turn % 4]);
                embedding_into(&ctx, &ids, &table, &mut y).unwrap();
                assert_close(&ctx, &y, &want, 1.0, 0.0, "embedding into");
                assert_gaps_kept(&ctx, &y);
            }
        }
    }
}

#[test]
fn gather_and_index_select_go_along_any_dimension_of_every_layout() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for dim in 0..3 {
        for lay in Lay::ALL {
            for index_lay in Lay::ALL {
                turn += 1;
                let shape = [4, 5, 6];
                let dtype = [DType::F32, DType::BF16, DType::U8, DType::I64][turn % 4];
                let x = operand(&ctx, dtype, &shape, lay, |i| i as f64 % 100.0);
                let xh = Host::of(&ctx, &x);
                let pick = |i| (number(turn, i) * 9.0).abs() as usize as f64 % shape[dim] as f64;
                let index = operand(&ctx, INDICES[turn % 3], &[3, 4, 5], index_lay, pick);
                let ih = Host::of(&ctx, &index);
                let want = Host::build(&[3, 4, 5], |i| {
                    let mut from = i.to_vec();
                    from[dim] = ih.at(i) as usize;
                    xh.at(&from)
                });
                assert_close(&ctx, &gather(&ctx, &x, dim, &index).unwrap(), &want, 0.0, 0.0, "gather");
                let mut y = output(&ctx, dtype, &[3, 4, 5], Lay::OUTPUTS[turn % 4]);
                gather_into(&ctx, &x, dim, &index, &mut y).unwrap();
                assert_close(&ctx, &y, &want, 0.0, 0.0, "gather into");
                assert_gaps_kept(&ctx, &y);

                let list = operand(&ctx, INDICES[turn / 3 % 3], &[7], index_lay, pick);
                let lh = Host::of(&ctx, &list);
                let mut shape = shape;
                shape[dim] = 7;
                let want = Host::build(&shape, |i| {
                    let mut from = i.to_vec();
                    from[dim] = lh.values[i[dim]] as usize;
                    xh.at(&from)
                });
                assert_close(&ctx, &index_select(&ctx, &x, dim, &list).unwrap(), &want, 0.0, 0.0, "select");
                let mut y = output(&ctx, dtype, &shape, Lay::OUTPUTS[turn % 4]);
                index_select_into(&ctx, &x, dim, &list, &mut y).unwrap();
                assert_close(&ctx, &y, &want, 0.0, 0.0, "select into");
                assert_gaps_kept(&ctx, &y);
            }
        }
    }
}

#[test]
fn topk_gives_the_largest_in_order_with_the_first_of_equals() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for (shape, k) in [(&[4, 37][..], 5), (&[2, 3, 8], 8), (&[9], 1), (&[0, 3], 2), (&[2, 3], 0)] {
        for lay in Lay::ALL {
            turn += 1;
            let x = operand(&ctx, DType::COMPUTE[turn % 3], shape, lay, |i| (number(turn, i) * 8.0).round());
            let xh = Host::of(&ctx, &x);
            let width = *shape.last().unwrap();
            let mut out = shape.to_vec();
            *out.last_mut().unwrap() = k;
            let (mut values, mut places) = (Vec::new(), Vec::new());
            for row in xh.values.chunks(width) {
                let mut order: Vec<usize> = (0..width).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
                // The sign of zero does not order.
                order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
                values.extend(order[..k].iter().map(|&i| row[i]));
                places.extend(order[..k].iter().map(|&i| i as f64));
            }
            let (values, places) = (Host { shape: out.clone(), values }, Host { shape: out.clone(), values: places });
            let (v, i) = topk(&ctx, &x, k).unwrap();
            assert_close(&ctx, &v, &values, 0.0, 0.0, "values");
            assert_close(&ctx, &i, &places, 0.0, 0.0, "indices");
            let mut v = output(&ctx, x.dtype(), &out, Lay::OUTPUTS[turn % 4]);
            let mut i = output(&ctx, INDICES[turn % 3], &out, Lay::OUTPUTS[(turn + 1) % 4]);
            topk_into(&ctx, &x, k, &mut v, &mut i).unwrap();
            assert_close(&ctx, &v, &values, 0.0, 0.0, "values into");
            assert_close(&ctx, &i, &places, 0.0, 0.0, "indices into");
            [v, i].iter().for_each(|y| assert_gaps_kept(&ctx, y));
        }
    }
}

#[test]
fn errors_of_indices_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    let x = ctx.tensor(&[0f32; 6], &[2, 3]).unwrap();
    let ids = ctx.tensor(&[0u32, 2], &[2]).unwrap();
    assert_names(embedding(&ctx, &ids, &x), &["embedding", "2"]);
    assert_names(embedding(&ctx, &ids, &ids), &["embedding", "[vocab, width]"]);
    assert_names(embedding(&ctx, &x, &x), &["embedding", "f32", "u32"]);
    assert_names(index_select(&ctx, &x, 0, &ids), &["gather", "index 2"]);
    assert_names(index_select(&ctx, &x, 2, &ids), &["index_select", "dimension 2", "[2, 3]"]);
    assert_names(index_select(&ctx, &x, 0, &x), &["index_select", "[n]"]);
    assert_names(gather(&ctx, &x, 0, &ids), &["gather", "[2, 3]", "[2]"]);
    assert_names(topk(&ctx, &x, 4), &["topk", "top 4 of 3", "[2, 3]"]);
}
