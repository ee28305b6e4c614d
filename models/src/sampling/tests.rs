use super::*;
use proptest::prelude::*;

fn sampler(params: SamplingParams) -> Sampler {
    Sampler::new(params).expect("valid parameters")
}

fn warm() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::default() }
}

fn ids(params: SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut sampler = sampler(params);
    let mut ids: Vec<u32> = sampler.distribution(logits, &[]).expect("a distribution").iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

/// The ids that the documented steps leave, by sorting everything in f64.
fn by_brute_force(params: &SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.retain(|&i| logits[i as usize] > f32::NEG_INFINITY);
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let max = f64::from(logits[order[0] as usize]);
    let weight = |i: u32| ((f64::from(logits[i as usize]) - max) / f64::from(params.temperature)).exp();
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut kept = Vec::new();
    let mut before = 0.0;
    for &i in &order {
        let in_top_p = params.top_p == 1.0 || before < f64::from(params.top_p) * total;
        before += weight(i);
        if in_top_p && weight(i) >= f64::from(params.min_p) {
            kept.push(i);
        }
    }
    kept.sort_unstable();
    kept
}

#[test]
fn greedy_takes_the_largest_logit_and_the_lowest_id_among_equals() {
    let mut greedy = sampler(SamplingParams::default());
    assert_eq!(greedy.sample(&[1.0, 3.0, 3.0, 2.0], &[]).expect("chosen"), 1);
    assert_eq!(greedy.sample(&[-1.0, f32::NEG_INFINITY, -0.5], &[]).expect("chosen"), 2);
    assert_eq!(greedy.sample(&[-0.0, 0.0], &[]).expect("chosen"), 0, "zeros are equal");
    assert_eq!(greedy.sample(&[f32::MIN], &[]).expect("chosen"), 0);
}

#[test]
fn greedy_finds_the_largest_logit_wherever_it_lies() {
    let mut greedy = sampler(SamplingParams::default());
    for len in [31, 32, 33, 100] {
        for at in 0..len {
            let mut logits = vec![-1.0; len];
            (logits[at], logits[len - 1]) = (1.0, 1.0);
            assert_eq!(greedy.sample(&logits, &[]).expect("chosen"), at as u32, "of {len}");
            logits[at] = f32::NAN;
            let line = greedy.sample(&logits, &[]).expect_err("NaN").one_line();
            assert!(line.contains(&format!("token {at} has")), "{line}");
        }
    }
}

#[test]
fn logits_without_a_choice_are_errors() {
    for params in [SamplingParams::default(), warm(), SamplingParams { top_k: 1, ..warm() }] {
        let mut sampler = sampler(params);
        for (logits, expected) in [
            (&[][..], "none"),
            (&[0.0, f32::NAN], "token 1 has logit NaN"),
            (&[f32::INFINITY, 0.0], "token 0 has logit inf"),
            (&[f32::NEG_INFINITY; 3], "all 3 are minus infinity"),
        ] {
            let line = sampler.sample(logits, &[]).expect_err("no choice").one_line();
            assert!(line.contains(expected), "{line}");
        }
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let base = warm;
    for (params, field) in [
        (SamplingParams { temperature: -0.1, ..base() }, "temperature"),
        (SamplingParams { temperature: f32::NAN, ..base() }, "temperature"),
        (SamplingParams { temperature: f32::INFINITY, ..base() }, "temperature"),
        (SamplingParams { top_p: -0.1, ..base() }, "top_p"),
        (SamplingParams { top_p: 1.1, ..base() }, "top_p"),
        (SamplingParams { top_p: f32::NAN, ..base() }, "top_p"),
        (SamplingParams { min_p: -0.1, ..base() }, "min_p"),
        (SamplingParams { min_p: 1.5, ..base() }, "min_p"),
        (SamplingParams { repetition_penalty: 0.0, ..base() }, "repetition_penalty"),
        (SamplingParams { presence_penalty: f32::NAN, ..base() }, "presence_penalty"),
        (SamplingParams { frequency_penalty: f32::INFINITY, ..base() }, "frequency_penalty"),
        (SamplingParams { logit_bias: vec![(0, f32::INFINITY)], ..base() }, "logit_bias"),
        (SamplingParams { logit_bias: vec![(0, f32::NAN)], ..base() }, "logit_bias"),
        (SamplingParams { bad_words: vec![vec![1], vec![]], ..base() }, "bad_words"),
    ] {
        let line = Sampler::new(params).expect_err(field).one_line();
        assert!(line.contains(field) && line.contains("expected"), "{line}");
    }
}

#[test]
fn top_k_of_one_is_greedy_even_among_equals() {
    let params = SamplingParams { top_k: 1, temperature: 5.0, ..warm() };
    assert_eq!(ids(params, &[1.0, 2.0, 2.0, 2.0]), [1]);
    assert_eq!(ids(SamplingParams { top_k: 2, ..warm() }, &[1.0, 2.0, 2.0, 2.0]), [1, 2]);
    assert_eq!(ids(SamplingParams { top_k: 9, ..warm() }, &[1.0, 2.0]), [0, 1]);
}

#[test]
fn top_p_of_zero_keeps_the_most_probable_token() {
    // transformers' `TopPLogitsWarper(0.0)` leaves one finite score.
    for top_p in [0.0, -0.0, 1e-30] {
        let params = SamplingParams { top_p, temperature: 5.0, ..warm() };
        assert_eq!(ids(params.clone(), &[1.0, 2.0, 2.0, f32::NEG_INFINITY]), [1]);
        assert_eq!(ids(SamplingParams { top_k: 3, min_p: 0.5, ..params }, &[0.0, 7.0, 6.9]), [1]);
    }
    // A device is asked for the same token.
    let mut on_device = sampler(SamplingParams { top_p: 0.0, top_k: 9, ..warm() });
    let asked = on_device.ask(0).expect("the logits stay as they are");
    assert_eq!((asked.top_k, asked.top_p), (1, 1.0));
}

#[test]
fn extreme_temperatures_stay_finite() {
    let logits = [f32::MAX, f32::MIN, 0.0, f32::MAX];
    for temperature in [f32::MIN_POSITIVE, 1e-45, 1.0, f32::MAX] {
        let mut sampler = sampler(SamplingParams { temperature, ..warm() });
        let sum: f64 =
            sampler.distribution(&logits, &[]).expect("a distribution").iter().map(|c| f64::from(c.probability)).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{temperature}: {sum}");
    }
}

#[test]
fn penalties_follow_their_formulas() {
    let logits = [2.0, -2.0, 1.0, 0.5];
    let history = History { prompt: &[0, 1, 0, 77], generated: &[2, 2, 1, u32::MAX] };
    let after = |params: SamplingParams| -> Vec<f32> {
        let mut sampler = sampler(SamplingParams { temperature: 1.0, ..params });
        let first: Vec<f32> =
            sampler.distribution(&logits, history).expect("a distribution").iter().map(|c| c.logit).collect();
        let second = sampler.distribution(&logits, history).expect("a distribution");
        assert!(second.iter().map(|c| c.logit).eq(first.iter().copied()), "marks are cleared");
        first
    };
    let p = SamplingParams::default;
    assert_eq!(after(SamplingParams { repetition_penalty: 2.0, ..p() }), [1.0, -4.0, 0.5, 0.5]);
    assert_eq!(after(SamplingParams { presence_penalty: 0.5, ..p() }), [2.0, -2.5, 0.5, 0.5]);
    assert_eq!(after(SamplingParams { frequency_penalty: 0.5, ..p() }), [2.0, -2.5, 0.0, 0.5]);
    let bias = vec![(3, 1.5), (0, -1.0), (99, 3.0)];
    assert_eq!(after(SamplingParams { logit_bias: bias, ..p() }), [1.0, -2.0, 1.0, 2.0]);
    let ban = SamplingParams { logit_bias: vec![(0, f32::NEG_INFINITY)], ..p() };
    assert_eq!(sampler(ban).sample(&logits, &[]).expect("chosen"), 2);
}

#[test]
fn what_is_ruled_out_is_not_chosen() {
    let kept = |params: SamplingParams, prompt: &[u32], generated: &[u32]| -> Vec<u32> {
        let mut sampler = sampler(SamplingParams { temperature: 1.0, ..params });
        let history = History { prompt, generated };
        sampler.distribution(&[0.0; 5], history).expect("a distribution").iter().map(|c| c.id).collect()
    };
    let ngrams = |n| SamplingParams { no_repeat_ngram_size: n, ..SamplingParams::default() };
    assert_eq!(kept(ngrams(0), &[0, 1], &[0]), [0, 1, 2, 3, 4]);
    assert_eq!(kept(ngrams(1), &[0, 1], &[0]), [2, 3, 4]);
    assert_eq!(kept(ngrams(2), &[0, 1], &[0]), [0, 2, 3, 4]);
    assert_eq!(kept(ngrams(2), &[0, 0], &[0, 3, 0]), [1, 2, 4]);
    assert_eq!(kept(ngrams(3), &[4, 1, 2, 9], &[4, 1]), [0, 1, 3, 4]);
    // What overlaps with the last tokens is a beginning, too.
    assert_eq!(kept(ngrams(3), &[], &[1, 1, 1]), [0, 2, 3, 4]);
    for n in [3, 4, 5, usize::MAX] {
        assert_eq!(kept(ngrams(n), &[1], &[1]), [0, 1, 2, 3, 4], "{n}");
    }
    assert_eq!(kept(ngrams(1), &[], &[]), [0, 1, 2, 3, 4]);

    let words = |words: &[&[u32]]| SamplingParams {
        bad_words: words.iter().map(|word| word.to_vec()).collect(),
        ..SamplingParams::default()
    };
    assert_eq!(kept(words(&[&[1], &[7, 2], &[99]]), &[0], &[]), [0, 2, 3, 4]);
    assert_eq!(kept(words(&[&[7, 2], &[3, 7, 0], &[6, 3, 7, 4]]), &[3], &[7]), [1, 3, 4]);

    let late = SamplingParams { not_before: vec![(0, 1), (3, 2), (77, 5)], ..SamplingParams::default() };
    assert_eq!(kept(late.clone(), &[1, 2], &[]), [1, 2, 4]);
    assert_eq!(kept(late.clone(), &[], &[1]), [0, 1, 2, 4]);
    assert_eq!(kept(late, &[], &[1, 2]), [0, 1, 2, 3, 4]);
}

#[test]
fn a_device_draws_once_nothing_is_ruled_out() {
    let late = SamplingParams { not_before: vec![(0, 2)], ..SamplingParams::default() };
    let asks = |params: &SamplingParams| [0, 1, 2, 3].map(|n| sampler(params.clone()).ask(n).is_some());
    assert_eq!(asks(&late), [false, false, true, true]);
    assert_eq!(asks(&SamplingParams { no_repeat_ngram_size: 2, ..warm() }), [false; 4]);
    assert_eq!(asks(&SamplingParams { bad_words: vec![vec![1, 2]], ..warm() }), [false; 4]);
    assert_eq!(asks(&warm()), [true; 4]);
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_seed_others() {
    let draw = |seed: u64| -> Vec<u32> {
        let mut sampler = sampler(SamplingParams { seed, ..warm() });
        (0..64).map(|_| sampler.sample(&[0.0; 16], &[]).expect("chosen")).collect()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn frequencies_follow_the_softmax() {
    const DRAWS: usize = 40_000;
    /// The 99.9th percentile of chi-square with 4 degrees of freedom; the seed is fixed, so this cannot flicker.
    const CRITICAL: f64 = 18.47;
    let logits: [f32; 5] = [0.0, 1.0, -1.0, 0.5, 2.0];
    for (temperature, seed) in [(1.0f32, 3), (0.7, 4), (2.5, 5)] {
        let weights = logits.map(|l| f64::from(l / temperature).exp());
        let total: f64 = weights.iter().sum();
        let mut sampler = sampler(SamplingParams { temperature, seed, ..warm() });
        let mut counts = [0usize; 5];
        for _ in 0..DRAWS {
            counts[sampler.sample(&logits, &[]).expect("chosen") as usize] += 1;
        }
        let chi_square: f64 = counts
            .iter()
            .zip(weights)
            .map(|(&count, weight)| {
                let expected = weight / total * DRAWS as f64;
                (count as f64 - expected).powi(2) / expected
            })
            .sum();
        assert!(chi_square < CRITICAL, "{temperature}: {chi_square} {counts:?}");
    }
}

#[test]
fn a_draw_at_either_end_picks_a_possible_token() {
    let candidate = |id, probability| Candidate { id, logit: 0.0, probability };
    let candidates = [candidate(3, 0.0), candidate(5, 0.5), candidate(7, 0.5), candidate(9, 0.0)];
    assert_eq!(pick(&candidates, 0.0), 5);
    assert_eq!(pick(&candidates, unit(u64::MAX)), 7);
    assert!(unit(u64::MAX) < 1.0);
}

#[test]
fn a_warm_sampler_keeps_its_scratch() {
    let params = SamplingParams { top_k: 5, top_p: 0.9, min_p: 0.01, repetition_penalty: 1.1, ..warm() };
    let mut sampler = sampler(params);
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 / 10.0).collect();
    // The first call sees the logits in ascending order, in which the scratch fills furthest.
    sampler.sample(&(0..1000).map(|i| i as f32 / 100.0).collect::<Vec<_>>(), &[1, 2]).expect("chosen");
    let room = |s: &Sampler| (s.changed.logits.capacity(), s.changed.seen.capacity(), s.candidates.capacity());
    let before = room(&sampler);
    for i in 0..100 {
        sampler.sample(&logits, &[i, i + 1, i + 2]).expect("chosen");
    }
    assert_eq!(room(&sampler), before);
}

proptest! {
    #[test]
    fn the_filters_keep_what_brute_force_keeps(
        // Few distinct values, for many ties; the last is minus infinity.
        values in prop::collection::vec(0u8..24, 1..200),
        top_k in 0usize..40, top_p in prop::sample::select(vec![1.0f32, 0.95, 0.7, 0.31, 0.013]),
        min_p in prop::sample::select(vec![0.0f32, 0.003, 0.11, 0.83]),
        temperature in prop::sample::select(vec![1.0f32, 0.37, 3.0]),
    ) {
        let mut logits: Vec<f32> = values
            .iter()
            .map(|&v| if v == 23 { f32::NEG_INFINITY } else { f32::from(v) * 0.377 - 3.0 })
            .collect();
        logits[0] = 0.0;
        let params = SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() };
        prop_assert_eq!(ids(params.clone(), &logits), by_brute_force(&params, &logits));
    }

    #[test]
    fn a_sample_is_always_one_of_the_candidates(
        logits in prop::collection::vec(-50f32..50.0, 1..300),
        seed in any::<u64>(), top_k in 0usize..400, top_p in 0.001f32..1.0, min_p in 0f32..1.0,
        temperature in 0f32..4.0, penalty in 0.5f32..2.0,
        history in prop::collection::vec(0u32..400, 0..20),
    ) {
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, repetition_penalty: penalty, seed, ..SamplingParams::default()
        };
        let mut sampler = sampler(params);
        let id = sampler.sample(&logits, &history).expect("chosen");
        let candidates = sampler.distribution(&logits, &history).expect("a distribution");
        prop_assert!(candidates.iter().any(|c| c.id == id && c.probability > 0.0));
        let sum: f64 = candidates.iter().map(|c| f64::from(c.probability)).sum();
        prop_assert!((sum - 1.0).abs() < 1e-5);
    }
}

#[test]
fn logprobs_are_the_softmax_of_what_the_model_said() {
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, -200.0];
    let found = Logprobs::of(&logits, 0, 3);
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let expected = |logit: f32| (f64::from(logit) - total.ln()) as f32;
    assert_eq!(found.logprob, expected(1.0));
    assert_eq!(found.top, [(1, expected(3.0)), (3, expected(3.0)), (0, expected(1.0))]);
    // No more than can come at all; none where none is asked for; and of what cannot come, minus infinity.
    assert_eq!(Logprobs::of(&logits, 2, 100).top.len(), 4);
    assert_eq!(Logprobs::of(&logits, 2, 0), Logprobs { logprob: f32::NEG_INFINITY, top: Vec::new() });
    // Neither overflows nor vanishes for large logits.
    assert_eq!(Logprobs::of(&[3e38, -3e38], 0, 1).logprob, 0.0);
}
