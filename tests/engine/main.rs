//! Many requests at once: what each is answered does not depend on the others, nothing is lost, and nothing is left.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::test_runner::Config;
use sinew::memory::Cpu;
use sinew::models::engine::{EngineStats, TraceLine, TraceOptions};
use sinew::models::{Engine, EngineHandle, EngineOptions, Error, Event, Finish, GenerateOptions, Happening, Load};
use sinew::models::{Logprobs, OldKv, Request, SamplingParams};
use sinew::ops::Policy;
use sinew::prelude::*;

mod failures;
#[path = "../common/fixtures.rs"]
mod fixtures;
#[path = "../common/gate.rs"]
mod gate;
mod many;
mod prefixes;
mod turns;

/// Of the fixture with the fewest tokens.
const VOCAB: u32 = 307;

/// The log probabilities of all tokens, whose bits are those of the logits but for what all of them have in common.
const ALL: Option<usize> = Some(0xffff);

/// With a tokenizer; with and without windows in its layers; with windows in all; and others that have both.
const FIXTURES: [&str; 5] = [
    "llama3_rope_gqa3_hd20_bf16_tied_bpe",
    "gemma2_gqa3_hd20_bf16",
    "mistral_window_gqa3_hd20_bf16_untied",
    "gemma3_text_gqa3_hd20_bf16",
    "qwen3_moe_4experts_window_hd20_bf16",
];

fn model(threads: usize, dtype: DType, options: LoadOptions) -> LanguageModel {
    fixture(FIXTURES[0], threads, dtype, options)
}

fn fixture(name: &str, threads: usize, dtype: DType, options: LoadOptions) -> LanguageModel {
    let device = Cpu::with(threads, SimdLevel::detected()).expect("threads start");
    let ctx = Context::on(device, Policy::default()).expect("a context");
    fixture_on(Arc::new(ctx), name, dtype, options)
}

fn fixture_on(ctx: Arc<Context>, name: &str, dtype: DType, options: LoadOptions) -> LanguageModel {
    let folder = Folder::new(fixtures::fixture_path(name));
    let mut config = folder.config().expect("the config is valid").as_decoder().expect("it is a decoder").clone();
    // The fixtures say 256, but their rotary positions go on for ever.
    config.max_position_embeddings = 8192;
    let checkpoint = folder.checkpoint(Load::Mmap).expect("the fixture opens");
    let options = LoadOptions {
        weights: WeightOptions { dtype: Some(dtype), ..WeightOptions::default() },
        context: options.context.or(Some(2048)),
        ..options
    };
    let tokenizer = folder.tokenizer().expect("a valid tokenizer");
    LanguageModel::from_parts(ctx, &config, &checkpoint, tokenizer, &options, &mut |_, _| {})
        .expect("the fixture loads")
}

/// Tokens that every fixture has.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7919 + seed * 104_729 + 3) % VOCAB).collect()
}

/// All of an answer, with a hash of the bits of each token's log probabilities.
#[derive(Debug, Clone, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<u64>,
    finish: Option<Finish>,
}

fn hash(logprobs: &Logprobs) -> u64 {
    let mut hasher = DefaultHasher::new();
    logprobs.logprob.to_bits().hash(&mut hasher);
    logprobs.top.iter().for_each(|&(id, p)| (id, p.to_bits()).hash(&mut hasher));
    hasher.finish()
}

/// What the model answers to a request that is alone, by `generate`.
fn alone(model: &mut LanguageModel, request: &Request, sample: usize) -> Answer {
    let mut options = request.options.clone();
    options.sampling.seed += sample as u64;
    let answer = model.generate(&request.prompt, &options, &mut |_| ControlFlow::Continue(())).expect("an answer");
    let logprobs = answer.logprobs.iter().map(hash).collect();
    Answer { tokens: answer.tokens, text: answer.text, logprobs, finish: Some(answer.finish) }
}

type Answers = HashMap<(u64, usize), Answer>;

fn number(event: &Event) -> u64 {
    event.request.to_string().trim_start_matches("request ").parse().expect("a number")
}

fn hear(answers: &mut Answers, event: &Event) {
    let answer = answers.entry((number(event), event.sample)).or_default();
    assert_eq!(answer.finish, None, "nothing comes after the end");
    match &event.what {
        Happening::Token { token, text, logprobs } => {
            answer.tokens.push(*token);
            answer.text.push_str(text);
            answer.logprobs.extend(logprobs.as_ref().map(hash));
        }
        Happening::Finished { finish, text } => {
            answer.text.push_str(text);
            answer.finish = Some(*finish);
        }
        Happening::Failed(error) => panic!("{}: {error}", event.request),
    }
}

/// A request, and how many steps before the next comes.
fn request() -> impl Strategy<Value = (Request, usize)> {
    let sampling = (prop_oneof![Just(0.0f32), Just(0.9)], 0u64..1000, 0usize..40, prop_oneof![Just(1.0f32), Just(1.3)]);
    // Prompts of one seed begin alike.
    let prompts = prop_oneof![4 => 1usize..20, 4 => 20usize..90, 1 => 500usize..1300];
    let lengths = (0u32..5, prompts, prop_oneof![1usize..12, 12usize..40]);
    let salt = prop_oneof![3 => Just(0u64), 1 => Just(1)];
    (lengths, sampling, 1usize..4, -2i32..3, salt, prop_oneof![2 => Just(0usize), 1 => 1usize..6]).prop_map(
        |((seed, len, new), (temperature, seed_of_draws, top_k, penalty), samples, priority, salt, gap)| {
            let sampling = SamplingParams {
                temperature,
                top_k,
                repetition_penalty: penalty,
                seed: seed_of_draws,
                ..SamplingParams::default()
            };
            let options =
                GenerateOptions { max_new_tokens: new, sampling, logprobs: ALL, ..GenerateOptions::default() };
            let request = Request { options, samples, priority, salt, ..Request::new(prompt(seed, len)) };
            (request, gap)
        },
    )
}

/// Dtypes of weights, of the cache where it is another, and the form of old tokens where they have one.
const DTYPES: [(DType, Option<DType>, Option<OldKv>); 7] = [
    (DType::F32, None, None),
    (DType::BF16, None, None),
    (DType::F32, Some(DType::I8), None),
    (DType::BF16, Some(DType::I8), None),
    (DType::BF16, Some(DType::F8E4M3), None),
    (DType::F32, None, Some(OldKv { dtype: DType::I8, recent: 1 })),
    (DType::BF16, None, Some(OldKv { dtype: DType::F8E4M3, recent: 20 })),
];

/// Prints the rows that serve a model, each time that one is seen first: `cargo test --test engine -- --nocapture`.
fn show_rows(model: &LanguageModel) {
    static SEEN: Mutex<BTreeSet<(&str, &str)>> = Mutex::new(BTreeSet::new());
    let mut seen = SEEN.lock().expect("printing does not panic");
    for (place, rows) in model.decoder().kernels() {
        rows.into_iter().filter(|row| seen.insert((place, row))).for_each(|row| println!("{place}: {row}"));
    }
}

proptest! {
    #![proptest_config(Config { cases: 256, ..Config::default() })]

    fn answers_are_those_of_requests_alone(
        mut requests in prop::collection::vec(request(), 1..9),
        name in prop::sample::select(FIXTURES.to_vec()),
        (dtype, kv, old_kv) in prop::sample::select(DTYPES.to_vec()),
        threads in 1usize..17,
        max_sequences in 1usize..7,
        prefill_chunk in prop_oneof![Just(1usize), 2usize..40, Just(512)],
        block_size in prop_oneof![Just(8usize), Just(16), 8usize..=128, Just(128)],
        // From so little that the longest fits only alone to room for all.
        spare in prop_oneof![Just(0usize), 0usize..200, Just(2000)],
        swap_tokens in prop_oneof![1 => Just(0usize), 2 => 0usize..400],
        // Which of the requests is cancelled, and after how many steps.
        cancelled in prop::option::of((0usize..8, 0u32..60)),
    ) {
        let needs = |request: &Request| request.prompt.len() + request.options.max_new_tokens;
        let longest = requests.iter().map(|(request, _)| needs(request)).max().unwrap_or(0) + block_size;
        let cache_tokens = Some(longest + spare);
        let usual = LoadOptions { kv, old_kv, ..LoadOptions::default() };
        let options = LoadOptions { max_sequences, prefill_chunk, block_size, cache_tokens, swap_tokens, ..usual.clone() };
        let mut engine = Engine::new(fixture(name, threads, dtype, options), EngineOptions::default());
        show_rows(engine.model());
        let mut answers = Answers::new();
        let mut expected = Answers::new();
        let mut solo = fixture(name, 2, dtype, usual);
        let mut ids = Vec::new();
        requests.iter_mut().for_each(|(request, _)| request.samples = request.samples.min(max_sequences));
        for (request, gap) in &requests {
            let id = engine.submit(request.clone()).expect("a valid request");
            ids.push(id);
            let id = number(&Event { request: id, sample: 0, what: Happening::Failed(Error::Cancelled) });
            for sample in 0..request.samples {
                expected.insert((id, sample), alone(&mut solo, request, sample));
            }
            for _ in 0..*gap {
                engine.step().expect("a step").iter().for_each(|event| hear(&mut answers, event));
            }
        }
        let mut steps = 0;
        while !engine.is_idle() {
            if let Some((which, after)) = cancelled && steps == after && let Some(&id) = ids.get(which) {
                engine.cancel(id);
            }
            engine.step().expect("a step").iter().for_each(|event| hear(&mut answers, event));
            steps += 1;
            prop_assert!(steps < 50_000, "it goes on");
        }
        for (id, expected) in &mut expected {
            let answer = &answers[id];
            if answer.finish == Some(Finish::Cancelled) {
                // What it was told until then.
                prop_assert!(expected.tokens.starts_with(&answer.tokens) && expected.text.starts_with(&answer.text));
                prop_assert!(expected.logprobs.starts_with(&answer.logprobs));
                expected.clone_from(answer);
            }
        }
        prop_assert_eq!(&answers, &expected);
        let stats = engine.stats();
        prop_assert_eq!((stats.waiting, stats.running, stats.finished), (0, 0, expected.len() as u64));
        let cache = engine.cache().stats();
        prop_assert_eq!((cache.used, cache.references, cache.available()), (0, 0, cache.total));
        *SEEN.lock().expect("adding does not panic") += Seen::of(longest, &stats);
    }
}

/// What happened in all cases.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Tokens of the longest prompt.
    longest: usize,
    found: u64,
    swapped: u64,
    run_again: u64,
}

impl Seen {
    const NOTHING: Self = Self { longest: 0, found: 0, swapped: 0, run_again: 0 };

    fn of(longest: usize, stats: &EngineStats) -> Self {
        let &EngineStats { found, swapped, preemptions, .. } = stats;
        Self { longest, found, swapped, run_again: preemptions - swapped }
    }
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.longest = self.longest.max(other.longest);
        self.found += other.found;
        self.swapped += other.swapped;
        self.run_again += other.run_again;
    }
}

static SEEN: Mutex<Seen> = Mutex::new(Seen::NOTHING);

#[test]
fn an_answer_does_not_depend_on_its_neighbours() {
    answers_are_those_of_requests_alone();
    let seen = *SEEN.lock().expect("adding does not panic");
    println!("{seen:?}");
    // Beyond the groups of keys that threads share out.
    assert!(seen.longest > 512, "the test has lost its point: {seen:?}");
    assert!(seen.found > 0 && seen.swapped > 0 && seen.run_again > 0, "the test has lost its point: {seen:?}");
}

#[test]
fn a_mixed_batch_wastes_less_than_a_block_of_each_sequence() {
    const LENGTHS: [usize; 10] = [2, 7, 33, 100, 250, 511, 900, 1500, 2500, 4000];
    let options = LoadOptions { max_sequences: LENGTHS.len(), context: Some(4096), ..LoadOptions::default() };
    let mut engine = Engine::new(fixture(FIXTURES[1], 2, DType::F32, options), EngineOptions::default());
    for len in LENGTHS {
        engine.submit(asked(len, 60)).expect("a valid request");
    }
    let groups = engine.cache().shape().groups().to_vec();
    let (mut all_of_prompts, mut most_wasted) = (false, 0);
    while !engine.is_idle() {
        engine.step().expect("a step");
        let (stats, running) = (engine.cache().stats(), engine.stats().running);
        let wasted = stats.table_slots - stats.table_tokens;
        let less_than_a_block: usize = groups.iter().map(|group| group.layout.block_size() - 1).sum();
        assert!(wasted <= (less_than_a_block * running) as u64, "{running} running: {stats:?}");
        most_wasted = most_wasted.max(wasted);
        all_of_prompts |= running == LENGTHS.len() && stats.table_tokens >= LENGTHS.iter().sum::<usize>() as u64;
    }
    assert!(all_of_prompts && most_wasted > 0, "they were never all there");
}

fn small(max_sequences: usize, cache_tokens: usize) -> Engine {
    let options = LoadOptions { max_sequences, cache_tokens: Some(cache_tokens), ..LoadOptions::default() };
    Engine::new(model(2, DType::F32, options), EngineOptions::default())
}

fn asked(len: usize, new: usize) -> Request {
    let options = GenerateOptions { max_new_tokens: new, ignore_eos: true, ..GenerateOptions::default() };
    Request { options, ..Request::new(prompt(len as u32, len)) }
}

fn run(engine: &mut Engine) -> Vec<(u64, String)> {
    let mut ends = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().expect("a step") {
            match &event.what {
                Happening::Token { .. } => {}
                Happening::Finished { finish, .. } => ends.push((number(event), finish.to_string())),
                Happening::Failed(error) => ends.push((number(event), error.to_string())),
            }
        }
    }
    ends
}

#[test]
fn sequences_make_room_and_come_back() {
    // Each fits alone, and no two of them at their longest.
    let mut engine = small(3, 128);
    for len in 30..33 {
        engine.submit(asked(len, 60)).expect("a valid request");
    }
    let ends = run(&mut engine);
    assert_eq!(ends.len(), 3);
    assert!(ends.iter().all(|(_, end)| end == "length"), "{ends:?}");
    let stats = engine.stats();
    assert!(stats.preemptions > 0, "{stats:?}");
    // What made room was run again.
    assert!(stats.prefilled > 30 + 31 + 32, "{stats:?}");
    assert_eq!(engine.cache().stats().used, 0);
}

#[test]
fn what_a_window_has_left_behind_is_free() {
    // Windows of 7 in blocks of 4: of 200 tokens 3 blocks at most are held, and a step adds 5 to them.
    let options = LoadOptions { block_size: 4, prefill_chunk: 20, ..LoadOptions::default() };
    for (name, full) in [(FIXTURES[2], 0), (FIXTURES[1], 200 / 4)] {
        let mut engine = Engine::new(fixture(name, 1, DType::F32, options.clone()), EngineOptions::default());
        let windows = engine.model().decoder().config().windows();
        assert_eq!(windows.contains(&None), full > 0, "{name}");
        engine.submit(asked(150, 50)).expect("a valid request");
        let mut most = 0;
        while !engine.is_idle() {
            engine.step().expect("a step");
            most = most.max(engine.cache().stats().used);
        }
        assert!(most <= full + 3 + 5, "{name}: {most} blocks");
        assert!(most >= full + 3, "{name}: {most} blocks");
        // Within steps of the prompt, where windows are at their fullest, but others are not.
        let peak = engine.cache().stats().peak_used;
        let at_once = if full > 0 { full + 3 + 1 } else { 3 + 5 };
        assert!((most..=at_once).contains(&peak), "{name}: {most} blocks, {peak} at most");
    }
}

#[test]
fn what_is_swapped_out_is_not_run_again() {
    let old = Some(OldKv { dtype: DType::I8, recent: 1 });
    let caches = [(None, None), (Some(DType::I8), None), (Some(DType::F8E4M3), None), (None, old)];
    for (name, (kv, old_kv)) in FIXTURES[..3].iter().flat_map(|&name| caches.map(|cache| (name, cache))) {
        let (cache_tokens, usual) = (Some(128), LoadOptions { kv, old_kv, ..LoadOptions::default() });
        let options = LoadOptions { max_sequences: 3, cache_tokens, swap_tokens: 512, ..usual.clone() };
        let mut engine = Engine::new(fixture(name, 2, DType::F32, options), EngineOptions::default());
        let mut solo = fixture(name, 2, DType::F32, usual);
        let mut requests = [asked(30, 60), asked(31, 60), asked(32, 60)];
        for request in &mut requests {
            // More than tokens: where a byte of the cache is lost, probabilities show it.
            request.options.logprobs = Some(2);
            engine.submit(request.clone()).expect("a valid request");
        }
        let mut answers = Answers::new();
        while !engine.is_idle() {
            engine.step().expect("a step").iter().for_each(|event| hear(&mut answers, event));
        }
        let stats = engine.stats();
        // Only layers that see everything run out of room.
        assert_eq!(stats.preemptions > 0, name != FIXTURES[2], "{name} {kv:?} {old_kv:?}: {stats:?}");
        assert_eq!(stats.swapped, stats.preemptions, "{name} {kv:?} {old_kv:?}: {stats:?}");
        assert_eq!(stats.prefilled + stats.found, 30 + 31 + 32, "{name} {kv:?} {old_kv:?}: {stats:?}");
        for (i, request) in requests.iter().enumerate() {
            assert!(answers[&(i as u64, 0)] == alone(&mut solo, request, 0), "{name} {kv:?} {old_kv:?}");
        }
        assert_eq!(engine.cache().stats().used, 0);
    }
}

/// Random requests, some of them cancelled at random: those that finish are answered as alone, and nothing is left.
/// `SINEW_REQUESTS=10000` is the run that is recorded in `benches/results/soak.txt`.
#[test]
fn a_soak_leaves_nothing_behind() {
    let count: usize = std::env::var("SINEW_REQUESTS").map_or(300, |count| count.parse().expect("a number"));
    let options = LoadOptions {
        max_sequences: 6,
        prefill_chunk: 48,
        cache_tokens: Some(512),
        swap_tokens: 256,
        ..LoadOptions::default()
    };
    let mut engine = Engine::new(model(2, DType::BF16, options), EngineOptions::default());
    let mut solo = model(2, DType::BF16, LoadOptions::default());
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut answers, mut open) = (Answers::new(), HashMap::new());
    let (mut submitted, mut finished, mut cancelled) = (0, 0, 0);
    while submitted < count || !engine.is_idle() {
        while submitted < count && engine.stats().waiting < 4 + random(12) {
            let mut request = asked(1 + random(60), 1 + random(40));
            request.prompt = prompt(random(6) as u32, request.prompt.len());
            request.priority = random(3) as i32;
            request.options.sampling.temperature = [0.0, 0.9][random(2)];
            request.options.sampling.seed = random(1000) as u64;
            let id = engine.submit(request.clone()).expect("a valid request");
            open.insert(submitted as u64, (id, request));
            submitted += 1;
        }
        if random(12) == 0
            && let Some((id, _)) = open.get(&(submitted.saturating_sub(1 + random(12)) as u64))
        {
            engine.cancel(*id);
        }
        let mut ended = Vec::new();
        for event in engine.step().expect("a step") {
            hear(&mut answers, event);
            ended.extend(event.is_last().then(|| number(event)));
        }
        for id in ended {
            let (_, request) = open.remove(&id).expect("it ends once");
            let answer = answers.remove(&(id, 0)).expect("it was heard of");
            match answer.finish {
                Some(Finish::Cancelled) => cancelled += 1,
                _ => {
                    assert!(answer == alone(&mut solo, &request, 0), "request {id}");
                    finished += 1;
                }
            }
        }
    }
    let (stats, cache) = (engine.stats(), engine.cache().stats());
    println!("{submitted} requests: {finished} finished as alone, {cancelled} cancelled; {stats:?}; {cache:?}");
    assert!(open.is_empty() && answers.is_empty());
    assert_eq!((finished + cancelled, cache.used, cache.references), (submitted, 0, 0));
    assert_eq!(cache.available(), cache.total);
    assert!(cancelled > 0 && stats.preemptions > stats.swapped && stats.swapped > 0 && stats.found > 0, "{stats:?}");
}

#[test]
fn traces_that_cannot_be_are_refused_and_all_prefixes_differ() {
    let usual = TraceOptions {
        requests: 2,
        rate: 1.0,
        prompt_tokens: (1, 8),
        new_tokens: (1, 8),
        prefixes: 1,
        prefix_tokens: 4,
        seed: 1,
    };
    assert!(TraceLine::generate(&usual).is_ok());
    for wrong in [
        TraceOptions { requests: usize::MAX, ..usual.clone() },
        TraceOptions { prefix_tokens: usize::MAX, ..usual.clone() },
        TraceOptions { rate: 1e-320, ..usual.clone() },
    ] {
        assert!(matches!(TraceLine::generate(&wrong), Err(Error::Input(_))), "{wrong:?}");
    }
    let of = |prefix| {
        TraceLine { arrival_s: 0.0, prompt_tokens: 4, new_tokens: 1, prefix, prefix_tokens: 4 }.prompt(0, 1000)
    };
    let prompts = [0, 1, u64::MAX >> 1, 1 << 63, u64::MAX].map(of);
    for (i, one) in prompts.iter().enumerate() {
        assert!(!prompts[..i].contains(one), "{i}");
    }
}

#[test]
fn a_replay_ends_where_nothing_may_wait() {
    let options = EngineOptions { max_waiting: 0, ..EngineOptions::default() };
    let mut engine = Engine::new(model(1, DType::F32, LoadOptions::default()), options);
    let line = TraceLine { arrival_s: 0.0, prompt_tokens: 4, new_tokens: 2, prefix: 0, prefix_tokens: 0 };
    let mut turns = 0;
    let mut go_on = || {
        turns += 1;
        if turns < 10_000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let replayed = engine.replay(&[line; 3], 1.0, &mut go_on).expect("it runs");
    assert_eq!((replayed.answered, replayed.failed), (3, 0));
}

#[test]
fn a_replay_counts_tokens_of_what_was_answered_whole() {
    let options = LoadOptions { cache_tokens: Some(96), ..LoadOptions::default() };
    let mut engine = Engine::new(model(1, DType::F32, options), EngineOptions::default());
    let line = |prompt_tokens, new_tokens| TraceLine {
        arrival_s: 0.0,
        prompt_tokens,
        new_tokens,
        prefix: 0,
        prefix_tokens: 0,
    };
    let go_on = &mut || ControlFlow::Continue(());
    // The cache is full before the first is whole.
    let replayed = engine.replay(&[line(60, 100), line(10, 2)], 1.0, go_on).expect("it runs");
    assert_eq!((replayed.answered, replayed.failed), (1, 1), "{replayed:?}");
    assert_eq!((replayed.prompt_tokens, replayed.new_tokens), (10, 2), "{replayed:?}");
    assert!(replayed.seconds > 0.0);
}
