use sinew_ops::*;
use sinew_tensor::DType;

use crate::lay::*;

#[test]
fn rotary_turns_heads_of_any_rank_and_layout() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for (shape, positions_shape) in [
        (&[5, 2, 8][..], &[5][..]),
        (&[2, 5, 3, 8], &[5]),
        (&[2, 5, 3, 8], &[2, 5]),
        (&[2, 1, 3, 2, 10], &[1, 3]),
        (&[0, 2, 8], &[0]),
    ] {
        for lay in Lay::ALL {
            for interleaved in [false, true] {
                turn += 1;
                let head_dim = *shape.last().unwrap();
                let rotary_dim = if turn % 3 == 0 { 6 } else { head_dim };
                let table = RotaryTable::with_theta(&ctx, 100.0, rotary_dim, 50).unwrap();
                let positions = operand(&ctx, DType::I32, positions_shape, lay, |i| (i * 7 % 50) as f64);
                let x = random(&ctx, DType::COMPUTE[turn % 3], shape, Lay::ALL[turn % 5], turn);
                let (xh, ph) = (Host::of(&ctx, &x), Host::of(&ctx, &positions));
                let half = rotary_dim / 2;
                let want = Host::build(shape, |index| {
                    let (&i, head) = index.split_last().unwrap();
                    if i >= rotary_dim {
                        return xh.at(index);
                    }
                    let token = &head[..head.len() - 1];
                    let (pair, second) = if interleaved { (i / 2, i % 2 == 1) } else { (i % half, i >= half) };
                    let partner = match (interleaved, second) {
                        (true, true) => i - 1,
                        (true, false) => i + 1,
                        (false, true) => i - half,
                        (false, false) => i + half,
                    };
                    let other = xh.at(&[head, &[partner]].concat());
                    let angle = ph.at(token) * 100f64.powf(-2.0 * pair as f64 / rotary_dim as f64);
                    xh.at(index) * angle.cos() + if second { other } else { -other } * angle.sin()
                });
                let turned = rotary(&x, &positions, &table);
                let turned = if interleaved { turned.interleaved() } else { turned };
                let what = format!("rotary {:?}", x.layout());
                assert_close(&ctx, &turned.run(&ctx).unwrap(), &want, 1.0, 1e-6, &what);
                let mut y = output(&ctx, DType::COMPUTE[turn / 3 % 3], shape, Lay::OUTPUTS[turn % 4]);
                turned.run_into(&ctx, &mut y).unwrap();
                assert_close(&ctx, &y, &want, 1.0, 1e-6, &what);
                assert_gaps_kept(&ctx, &y);
            }
        }
    }
}

#[test]
fn errors_of_rotary_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    let table = RotaryTable::with_theta(&ctx, 1e4, 4, 3).unwrap();
    let x = ctx.tensor(&[0f32; 8], &[2, 1, 4]).unwrap();
    let at = |values: &[i32]| ctx.tensor(values, &[values.len()]).unwrap();
    assert_names(rotary(&x, &at(&[0, 3]), &table).run(&ctx), &["rotary", "3"]);
    assert_names(rotary(&x, &at(&[0, -1]), &table).run(&ctx), &["rotary", "-1"]);
    assert_names(rotary(&x, &at(&[0, 1, 2]), &table).run(&ctx), &["rotary", "positions", "[3]", "[2]"]);
    assert_names(rotary(&x, &at(&[1]), &table).run(&ctx), &["rotary", "positions", "[1]", "[.., seq]", "[2]"]);
    let batch = ctx.tensor(&[0f32; 24], &[3, 2, 1, 4]).unwrap();
    assert_names(rotary(&batch, &at(&[0, 1, 2]), &table).run(&ctx), &["rotary", "[3]", "[.., seq]", "[3, 2]"]);
    let column = ctx.tensor(&[0i32; 3], &[3, 1]).unwrap();
    assert_names(rotary(&batch, &column, &table).run(&ctx), &["rotary", "[3, 1]", "[.., seq]", "[3, 2]"]);
    let wide = ctx.tensor(&[0i64; 2], &[2]).unwrap();
    assert_names(rotary(&x, &wide, &table).run(&ctx), &["rotary", "i64", "i32", "cast"]);
    let flat = ctx.tensor(&[0f32; 8], &[2, 4]).unwrap();
    assert_names(rotary(&flat, &at(&[0]), &table).run(&ctx), &["rotary", "[.., seq, heads, head_dim]"]);
}
