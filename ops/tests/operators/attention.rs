use sinew_ops::*;
use sinew_tensor::{DType, Tensor};

use crate::lay::*;

/// Which keys a token sees, and what is added to its scores.
type Seen<'a> = &'a dyn Fn(&[usize; 4]) -> Option<f64>;

/// Attention in f64. `seen` is asked for `[batch, head, token, key]`.
fn reference(q: &Host, k: &Host, v: &Host, scale: f64, softcap: Option<f64>, seen: Seen<'_>) -> Host {
    let batch = if q.shape[0] == 1 { k.shape[0] } else { q.shape[0] };
    let (heads, group, dim) = (q.shape[2], q.shape[2] / k.shape[2], q.shape[3]);
    Host::build(&[batch, q.shape[1], heads, dim], |index| {
        let &[b, token, head, d] = index else { panic!() };
        let scores: Vec<f64> = (0..k.shape[1])
            .map(|key| {
                let dot: f64 = (0..dim).map(|d| q.at(&[b, token, head, d]) * k.at(&[b, key, head / group, d])).sum();
                let score = softcap.map_or(scale * dot, |cap| cap * (scale * dot / cap).tanh());
                seen(&[b, head, token, key]).map_or(f64::NEG_INFINITY, |bias| score + bias)
            })
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY {
            return 0.0;
        }
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().enumerate().map(|(key, w)| w / sum * v.at(&[b, key, head / group, d])).sum()
    })
}

/// Shapes of queries and of keys.
const SHAPES: [([usize; 4], [usize; 4]); 6] = [
    ([2, 3, 4, 8], [2, 5, 2, 8]),
    ([1, 7, 2, 16], [1, 7, 2, 16]),
    ([3, 1, 4, 5], [1, 9, 1, 5]),
    ([1, 2, 2, 8], [3, 70, 1, 8]),
    ([0, 2, 2, 8], [1, 3, 2, 8]),
    ([2, 2, 1, 1], [2, 2, 1, 1]),
];

fn bound(dtypes: &[DType]) -> f64 {
    if dtypes.contains(&DType::BF16) { 3e-2 } else { 1e-5 }
}

#[test]
fn attention_takes_every_layout_grouped_heads_and_broadcast_batches() {
    let ctx = Context::cpu().unwrap();
    let mut turn = 0;
    for (q_shape, k_shape) in SHAPES {
        for lay in Lay::ALL {
            for causal in [false, true] {
                turn += 1;
                let (q_dtype, kv) = (DType::COMPUTE[turn % 3], DType::COMPUTE[turn / 3 % 3]);
                let q = random(&ctx, q_dtype, &q_shape, lay, turn);
                let k = random(&ctx, kv, &k_shape, Lay::ALL[turn % 5], turn + 1);
                let v = random(&ctx, kv, &k_shape, Lay::ALL[turn / 5 % 5], turn + 2);
                let (qh, kh, vh) = (Host::of(&ctx, &q), Host::of(&ctx, &k), Host::of(&ctx, &v));
                let (seq, kv_seq) = (q_shape[1], k_shape[1]);
                let window = (turn % 4 == 0).then_some(2);
                let softcap = (turn % 7 == 0).then_some(1.5);
                let seen = |&[_, _, token, key]: &[usize; 4]| {
                    let at = (kv_seq - seq + token) as i64 - key as i64;
                    let near = window.is_none_or(|w| at < w && -at < w);
                    (near && (!causal || at >= 0)).then_some(0.0)
                };
                let want = reference(&qh, &kh, &vh, 0.7, softcap, &seen);
                let mut of = attention(&q, &k, &v).scale(0.7);
                of = if causal { of.causal() } else { of };
                of = window.map_or(of.clone(), |w| of.window(w as usize));
                of = softcap.map_or(of.clone(), |cap| of.softcap(cap as f32));
                let slack = bound(&[q_dtype, kv]);
                let what = format!("q {:?} k {:?} causal {causal}", q.layout(), k.layout());
                assert_close(&ctx, &of.run(&ctx).unwrap(), &want, 2.0, slack, &what);
                let mut o = output(&ctx, DType::COMPUTE[turn / 9 % 3], &want.shape, Lay::OUTPUTS[turn % 4]);
                of.run_into(&ctx, &mut o).unwrap();
                assert_close(&ctx, &o, &want, 2.0, slack, &what);
                assert_gaps_kept(&ctx, &o);
            }
        }
    }
}

#[test]
fn masks_broadcast_over_batch_and_heads() {
    let ctx = Context::cpu().unwrap();
    let (q, kv) = ([2, 3, 4, 8], [2, 5, 2, 8]);
    let mut turn = 0;
    for shape in
        [&[3, 5][..], &[4, 3, 5], &[2, 1, 3, 5], &[2, 4, 3, 5], &[1, 1, 1, 5], &[2, 1, 1, 5], &[2, 1, 3, 1], &[5]]
    {
        for lay in Lay::ALL {
            turn += 1;
            let [q, k, v] = [q, kv, kv].map(|shape| random(&ctx, DType::F32, &shape, Lay::ALL[turn % 5], turn));
            let added = random(&ctx, DType::COMPUTE[turn % 3], shape, lay, turn);
            let allowed = gt(&ctx, &added, 0.5).unwrap();
            let (qh, kh, vh, mh) = (Host::of(&ctx, &q), Host::of(&ctx, &k), Host::of(&ctx, &v), Host::of(&ctx, &added));
            let scale = 1.0 / 8f64.sqrt();
            let want = reference(&qh, &kh, &vh, scale, None, &|i| Some(mh.at(i)));
            let y = attention(&q, &k, &v).mask(&added).run(&ctx).unwrap();
            assert_close(&ctx, &y, &want, 2.0, 1e-5, &format!("additive {:?}", added.layout()));
            // Rows that nothing allows are zeros.
            let want = reference(&qh, &kh, &vh, scale, None, &|i| (mh.at(i) > 0.5).then_some(0.0));
            let y = attention(&q, &k, &v).mask(&allowed).run(&ctx).unwrap();
            assert_close(&ctx, &y, &want, 2.0, 1e-5, &format!("boolean {:?}", added.layout()));
        }
    }
}

#[test]
fn a_mask_means_by_its_rank_what_pytorch_reads() {
    // Every size differs from the others, so that no two readings agree.
    let ctx = Context::cpu().unwrap();
    let [q, kv] = [[2, 3, 4, 8], [2, 5, 2, 8]];
    let [q, k] = [q, kv].map(|shape| random(&ctx, DType::F32, &shape, Lay::Contiguous, 1));
    let run = |mask: &Tensor| attention(&q, &k, &k).mask(mask).run(&ctx);
    for shape in [&[5][..], &[3, 5], &[1, 5], &[4, 3, 5], &[4, 1, 5], &[2, 4, 3, 5], &[2, 1, 1, 5]] {
        let mask = random(&ctx, DType::F32, shape, Lay::Contiguous, 2);
        let mut whole = mask.clone();
        while whole.shape().len() < 4 {
            whole = whole.unsqueeze(0).unwrap();
        }
        let [found, expected] = [&mask, &whole].map(|mask| run(mask).unwrap().to_vec::<f32>().unwrap());
        assert_eq!(found, expected, "{shape:?}");
    }
    for (shape, advice) in [
        (&[2, 5][..], "each sequence is [batch, 1, 1, kv_seq]"),
        (&[2, 3, 5], "each sequence is [batch, 1, seq, kv_seq]"),
        (&[2, 1, 5], "each sequence is [batch, 1, seq, kv_seq]"),
        (&[3], "[batch, heads, seq, kv_seq], here [2, 4, 3, 5]"),
        (&[3, 2], "[batch, heads, seq, kv_seq], here [2, 4, 3, 5]"),
        (&[1, 2, 4, 3, 5], "[batch, heads, seq, kv_seq], here [2, 4, 3, 5]"),
    ] {
        let mask = random(&ctx, DType::F32, shape, Lay::Contiguous, 2);
        assert_names(run(&mask), &["attention", "mask", &format!("{shape:?}"), advice]);
    }
}

#[test]
fn a_padding_mask_for_each_sequence_hides_its_keys() {
    let ctx = Context::cpu().unwrap();
    // The batch equals the number of tokens and of heads.
    let [q, k] = [1, 2].map(|seed| random(&ctx, DType::F32, &[3, 3, 3, 8], Lay::Contiguous, seed));
    let lengths = [1, 3, 2];
    let real = operand(&ctx, DType::F32, &[3, 3], Lay::Contiguous, |i| f64::from(u8::from(i % 3 < lengths[i / 3])));
    let real = gt(&ctx, &real, 0.5).unwrap().unsqueeze(1).unwrap().unsqueeze(1).unwrap();
    let y = attention(&q, &k, &k).mask(&real).run(&ctx).unwrap();
    for (sequence, length) in lengths.into_iter().enumerate() {
        let alone = |x: &Tensor| x.select(0, sequence).unwrap();
        let keys = alone(&k).narrow(0, 0, length).unwrap();
        let expected = attention(&alone(&q), &keys, &keys).run(&ctx).unwrap();
        let expected = Host::of(&ctx, &expected);
        assert_close(&ctx, &alone(&y), &expected, 1.0, 1e-6, &format!("sequence {sequence}"));
    }
}

#[test]
fn a_mask_that_may_be_of_a_batch_is_not_guessed() {
    let ctx = Context::cpu().unwrap();
    // The batch equals the number of tokens and of heads.
    let q = random(&ctx, DType::F32, &[2, 2, 2, 8], Lay::Contiguous, 1);
    let k = random(&ctx, DType::F32, &[2, 5, 2, 8], Lay::Contiguous, 2);
    for (shape, ways) in [
        (&[2, 5][..], ["[batch, 1, 1, kv_seq]", "[1, seq, kv_seq]"]),
        (&[2, 1], ["[batch, 1, 1, kv_seq]", "[1, seq, kv_seq]"]),
        (&[2, 2, 5], ["[batch, 1, seq, kv_seq]", "[1, heads, seq, kv_seq]"]),
        (&[2, 1, 5], ["[batch, 1, seq, kv_seq]", "[1, heads, seq, kv_seq]"]),
    ] {
        let mask = random(&ctx, DType::F32, shape, Lay::Contiguous, 3);
        for mask in [&mask, &gt(&ctx, &mask, 0.0).unwrap()] {
            let refused = attention(&q, &k, &k).mask(mask).run(&ctx);
            assert_names(refused, &["attention", "mask", &format!("{shape:?}"), ways[0], ways[1]]);
            let shared = mask.unsqueeze(0).unwrap();
            assert!(attention(&q, &k, &k).mask(&shared).run(&ctx).is_ok());
        }
    }
    // One sequence, with its batch or without, leaves no doubt.
    let (one, keys) = (q.narrow(0, 0, 1).unwrap(), k.narrow(0, 0, 1).unwrap());
    let mask = random(&ctx, DType::F32, &[2, 5], Lay::Contiguous, 3);
    let batched = attention(&one, &keys, &keys).mask(&mask).run(&ctx).unwrap();
    let [one, keys] = [one, keys].map(|x| x.select(0, 0).unwrap());
    let alone = attention(&one, &keys, &keys).mask(&mask).run(&ctx).unwrap();
    assert_eq!(batched.to_vec::<f32>().unwrap(), alone.to_vec::<f32>().unwrap());
    let wide = random(&ctx, DType::F32, &[1, 5], Lay::Contiguous, 3);
    assert!(attention(&q, &k, &k).mask(&wide).run(&ctx).is_ok());
}

#[test]
fn a_sink_is_as_one_key_more_whose_value_is_nothing() {
    let ctx = Context::cpu().unwrap();
    for (turn, lay) in Lay::ALL.into_iter().enumerate() {
        let q = random(&ctx, DType::F32, &[2, 3, 4, 8], lay, turn);
        let [k, v] = [1, 2].map(|n| random(&ctx, DType::F32, &[2, 5, 2, 8], Lay::ALL[(turn + n) % 5], turn + n));
        let sinks = operand(&ctx, DType::F32, &[4], Lay::OUTPUTS[turn % 4], |head| [0.3, -2.0, 4.0, 0.0][head]);
        // A sixth key and value of zeros, with the sink's logit on its score.
        let longer = |x: &Tensor| {
            let x = Host::of(&ctx, x);
            Host::build(&[2, 6, 2, 8], |i| if i[1] < 5 { x.at(i) } else { 0.0 })
        };
        let (qh, kh, vh, zh) = (Host::of(&ctx, &q), longer(&k), longer(&v), Host::of(&ctx, &sinks));
        let window = (turn % 2 == 0).then_some(2);
        let seen = |&[_, head, token, key]: &[usize; 4]| {
            let near = window.is_none_or(|w| (2 + token).abs_diff(key) < w);
            if key == 5 { Some(zh.at(&[head])) } else { near.then_some(0.0) }
        };
        let want = reference(&qh, &kh, &vh, 0.7, None, &seen);
        let of = attention(&q, &k, &v).scale(0.7).sinks(&sinks);
        let of = window.map_or(of.clone(), |w| of.window(w));
        assert_close(&ctx, &of.run(&ctx).unwrap(), &want, 2.0, 1e-5, &format!("sinks {:?}", sinks.layout()));
    }
}

#[test]
fn a_batch_may_be_left_out_and_no_keys_give_zeros() {
    let ctx = Context::cpu().unwrap();
    let q = random(&ctx, DType::F32, &[3, 2, 8], Lay::Padded, 0);
    let k = random(&ctx, DType::F32, &[3, 2, 8], Lay::Transposed, 1);
    let whole = |x: &Tensor| x.unsqueeze(0).unwrap();
    let y = attention(&q, &k, &k).run(&ctx).unwrap();
    assert_eq!(y.shape(), [3, 2, 8]);
    let (q4, k4) = (whole(&q), whole(&k));
    let batched = attention(&q4, &k4, &k4).run(&ctx).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), batched.to_vec::<f32>().unwrap());
    let none = ctx.tensor::<f32>(&[], &[0, 2, 8]).unwrap();
    let y = attention(&q, &none, &none).run(&ctx).unwrap();
    assert!(y.to_vec::<f32>().unwrap().iter().all(|&y| y == 0.0));
}

#[test]
fn errors_of_attention_say_what_is_wrong() {
    let ctx = Context::cpu().unwrap();
    let zeros = |shape: &[usize]| random(&ctx, DType::F32, shape, Lay::Contiguous, 0);
    let (q, k) = (zeros(&[1, 4, 3, 8]), zeros(&[1, 2, 2, 8]));
    assert_names(attention(&q, &k, &k).run(&ctx), &["attention", "[1, 4, 3, 8]", "[1, 2, 2, 8]", "multiple"]);
    let k = zeros(&[1, 2, 3, 8]);
    assert_names(attention(&q, &k, &k).causal().run(&ctx), &["attention", "causal", "keys"]);
    assert_names(attention(&q, &k, &zeros(&[1, 2, 3, 4])).run(&ctx), &["attention", "head_dim"]);
    let mask = zeros(&[5, 5]);
    assert_names(attention(&q, &k, &k).mask(&mask).run(&ctx), &["attention", "mask", "[5, 5]", "[1, 3, 4, 2]"]);
    let narrow = cast(&ctx, &k, DType::F16).unwrap();
    assert_names(attention(&q, &k, &narrow).run(&ctx), &["attention", "f32", "f16", "cast"]);
    let sinks = zeros(&[2]);
    assert_names(attention(&q, &k, &k).sinks(&sinks).run(&ctx), &["attention", "sinks", "f32", "[3]", "[2]"]);
    assert_names(attention(&zeros(&[4]), &k, &k).run(&ctx), &["attention", "[batch, seq, heads, head_dim]"]);
}

#[test]
fn kv_append_writes_its_slots_and_nothing_else() {
    let ctx = Context::cpu().unwrap();
    for (n, lay) in Lay::ALL.into_iter().enumerate() {
        let k = random(&ctx, DType::COMPUTE[n % 3], &[3, 2, 8], lay, n);
        let v = random(&ctx, DType::COMPUTE[n % 3], &[3, 2, 8], Lay::Stepped, n + 1);
        let slots = operand(&ctx, DType::I64, &[3], Lay::Padded, |i| [5.0, 0.0, 7.0][i]);
        let mut caches = [0, 1].map(|_| output(&ctx, DType::COMPUTE[(n + 1) % 3], &[2, 2, 4, 8], Lay::OUTPUTS[n % 4]));
        let [k_cache, v_cache] = &mut caches;
        kv_append(&ctx, &k, &v, &slots, k_cache, v_cache).unwrap();
        for (cache, new) in caches.iter().zip([&k, &v]) {
            let new = Host::of(&ctx, new);
            let want = Host::build(&[2, 2, 4, 8], |i| {
                let slot = i[0] * 4 + i[2];
                let token = [5, 0, 7].iter().position(|&s| s == slot);
                token.map_or(77.0, |token| new.at(&[token, i[1], i[3]]))
            });
            assert_close(&ctx, cache, &want, 1.0, 0.0, "cache");
            assert_gaps_kept(&ctx, cache);
        }
    }
}
