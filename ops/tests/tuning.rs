//! What was measured chooses among rows that give the same bits, and nothing that was not measured here, by this version
//! and with these rows, does.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use sinew_kernels::gemm::{Gemm, GemmDynamic, GemmStatic, Rhs};
use sinew_kernels::{Arithmetic, Compute, Error as KernelError, Registry, Row};
use sinew_memory::{Cpu, PrivateFolder};
use sinew_ops::{Budget, Context, Planned, Policy, Tuned, TuningCache, matmul, tune, tune_while};
use sinew_tensor::{DType, Tensor};

/// As many rows as stand for those like them.
const M: usize = 8;
const N: usize = 48;
const K: usize = 65;
const CALL: GemmDynamic = GemmDynamic { batch: 1, m: M };

fn problem() -> GemmStatic {
    GemmStatic::new(N, K, DType::F32, Rhs::Strided(DType::F32), DType::F32, Compute::F32)
}

/// Sinew's rows and others.
fn context(rows: &[Row<Gemm>], deterministic: bool) -> Context {
    let mut registry = Registry::standard();
    registry.add(rows.iter().copied());
    let policy = Policy { deterministic, ..Policy::default() };
    Context::new(Cpu::get(), Arc::new(registry), policy).unwrap()
}

/// The row that serves the problem where nothing was measured.
fn usual() -> Row<Gemm> {
    context(&[], true).choose::<Gemm>(&problem(), &CALL).unwrap()
}

/// The same by another name, which no prediction chooses.
fn twin() -> Row<Gemm> {
    Row { name: "gemm.cpu.twin", cost: |_, _, _| 1e9, ..usual() }
}

/// One that never runs.
fn broken() -> Row<Gemm> {
    Row { name: "gemm.cpu.broken", run: |_, _, _, _| Err(no_luck()), ..twin() }
}

/// One that is predicted to be the fastest, and is slow.
fn boastful() -> Row<Gemm> {
    Row {
        name: "gemm.cpu.boastful",
        cost: |_, _, _| 0.0,
        run: |launch, fixed, call, operands| {
            std::thread::sleep(Duration::from_millis(2));
            usual().launch(launch, fixed, call, operands)
        },
        ..usual()
    }
}

fn no_luck() -> KernelError {
    KernelError::Operands { operator: "gemm", reason: "no luck".into() }
}

fn product(ctx: &Context) -> Vec<f32> {
    let values = |count: usize| (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect::<Vec<f32>>();
    let tensor = |rows, columns| -> Tensor { ctx.tensor(&values(rows * columns), &[rows, columns]).unwrap() };
    matmul(&tensor(M, K), &tensor(K, N)).run(ctx).unwrap().to_vec().unwrap()
}

fn measured(ctx: &Context) -> Tuned {
    ctx.choose::<Gemm>(&problem(), &CALL).unwrap();
    tune(ctx, &Budget::default()).unwrap()
}

struct Cache {
    folder: tempfile::TempDir,
    cache: TuningCache,
}

impl Cache {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = TuningCache::at(PrivateFolder::at(folder.path().join("tuning")));
        Self { folder, cache }
    }

    /// One that says of the problem what was never measured.
    fn poisoned(ctx: &Context, times: &[(&str, f64)]) -> Self {
        let kept = Self::new();
        kept.cache.save(ctx, &measured(ctx)).unwrap();
        kept.change(|key, mut contents| {
            for problem in contents["gemm"].as_object_mut().unwrap().values_mut() {
                let rows: Value = times.iter().map(|&(row, seconds)| (row.to_owned(), Value::from(seconds))).collect();
                *problem = serde_json::json!({ "rows": rows, "rounds": 7 });
            }
            (key, contents)
        });
        kept
    }

    fn file(&self) -> PathBuf {
        let all = fs::read_dir(self.folder.path().join("tuning")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = all.filter(|path| path.extension().is_none_or(|e| e != "lock")).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    /// Writes the file again with another key and other contents.
    fn change(&self, change: impl FnOnce(String, Value) -> (String, Value)) {
        /// Magic, the lengths of key and contents, and a checksum.
        const HEADER: usize = 32;
        let path = self.file();
        let bytes = fs::read(&path).unwrap();
        let key_len = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
        let (key, contents) = bytes[HEADER..].split_at(key_len);
        let key = String::from_utf8(key.to_vec()).unwrap();
        let (key, contents) = change(key, serde_json::from_slice(contents).unwrap());
        let name = path.file_name().unwrap().to_str().unwrap();
        PrivateFolder::at(path.parent().unwrap()).keep(name, &key, contents.to_string().as_bytes());
    }
}

fn chosen(ctx: &Context) -> &'static str {
    ctx.choose::<Gemm>(&problem(), &CALL).unwrap().name
}

#[test]
fn the_row_that_was_measured_fastest_is_chosen_and_says_so() {
    let kept = Cache::poisoned(&context(&[twin()], true), &[(usual().name, 2e-3), ("gemm.cpu.twin", 1e-3)]);
    let ctx = context(&[twin()], true).with_tuning(&kept.cache);
    assert_eq!(chosen(&ctx), "gemm.cpu.twin");
    let explanation = ctx.explain::<Gemm>(&problem(), &CALL).unwrap();
    let choice = explanation.choice().unwrap();
    assert_eq!((choice.row, choice.measured_s), ("gemm.cpu.twin", Some(1e-3)));
    assert!(explanation.to_string().contains("measured"), "{explanation}");
    assert_eq!(product(&ctx), product(&context(&[], true)));
    // A preference goes before what was measured.
    let policy = Policy { prefer: vec![usual().name.into()], ..Policy::default() };
    let mut registry = Registry::standard();
    registry.add([twin()]);
    let ctx = Context::new(Cpu::get(), Arc::new(registry), policy).unwrap().with_tuning(&kept.cache);
    assert_eq!(chosen(&ctx), usual().name);
}

#[test]
fn a_row_that_is_measured_to_be_faster_than_the_choice_is_said_to_be() {
    let ctx = context(&[boastful()], true);
    let verdict = |explanation: &sinew_ops::Explanation| {
        assert_eq!(explanation.choice().unwrap().row, "gemm.cpu.boastful");
        let of_usual = explanation.candidates.iter().find(|candidate| candidate.row == usual().name);
        of_usual.unwrap().verdict.clone()
    };
    assert_eq!(verdict(&ctx.explain::<Gemm>(&problem(), &CALL).unwrap()), "slower by prediction");
    let measured = verdict(&ctx.explain_measured::<Gemm>(&problem(), &CALL).unwrap());
    assert!(measured.contains("faster as measured now"), "{measured}");
}

#[test]
fn a_fast_row_of_another_arithmetic_is_chosen_only_where_bits_may_change() {
    let other = Row { name: "gemm.cpu.other", arithmetic: Arithmetic::named("gemm.other"), ..twin() };
    for (deterministic, winner) in [(true, usual().name), (false, "gemm.cpu.other")] {
        let usual = chosen(&context(&[other], deterministic));
        let kept = Cache::poisoned(&context(&[other], deterministic), &[(usual, 1.0), ("gemm.cpu.other", 1e-9)]);
        assert_eq!(chosen(&context(&[other], deterministic).with_tuning(&kept.cache)), winner);
    }
}

#[test]
fn a_winner_that_fails_makes_way_for_the_next_row() {
    let times = [(usual().name, 1e-3), ("gemm.cpu.broken", 1e-9)];
    let kept = Cache::poisoned(&context(&[broken()], true), &times);
    let ctx = context(&[broken()], true).with_tuning(&kept.cache);
    // Planned with it, and chosen as it is called.
    let planned = ctx.plan::<Gemm>(problem(), &[CALL]).unwrap();
    assert_eq!(planned.rows()[0].1.row().name, "gemm.cpu.broken");
    assert_eq!(product(&ctx), product(&context(&[], true)));
    assert_eq!(chosen(&ctx), usual().name);
    let explanation = ctx.explain::<Gemm>(&problem(), &CALL).unwrap();
    let verdict = &explanation.candidates.iter().find(|c| c.row == "gemm.cpu.broken").unwrap().verdict;
    assert!(verdict.contains("failed") && verdict.contains("no luck"), "{verdict}");
    let a = ctx.tensor(&[1.0f32; M * K], &[1, M, K]).unwrap();
    let b = ctx.tensor(&[1.0f32; K * N], &[1, K, N]).unwrap();
    let mut d = ctx.tensor(&[0.0f32; M * N], &[1, M, N]).unwrap();
    let inputs = [Some(a.view()), Some(b.view()), None, None, None, None, None];
    planned.run(&ctx, &CALL, &inputs, &[d.view_mut().unwrap()]).unwrap();
    assert_eq!(d.to_vec::<f32>().unwrap(), vec![K as f32; M * N]);
    // While a record is taken as well.
    let ctx = context(&[broken()], true).with_tuning(&kept.cache);
    let (_, record) = ctx.record(|| product(&ctx));
    assert_eq!(record.launches.iter().map(|launched| launched.row).collect::<Vec<_>>(), [usual().name]);
    assert_eq!(chosen(&ctx), usual().name);
    // What is wrong with the operands is still told, by the row that was asked first.
    let error = planned.run(&ctx, &CALL, &[None; 7], &[d.view_mut().unwrap()]).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}

/// Warnings that are given while `work` runs, on this thread.
fn warnings(work: impl FnOnce()) -> usize {
    struct Counter(Arc<AtomicUsize>);

    impl tracing::Subscriber for Counter {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Counter(count.clone()), work);
    count.load(Ordering::Relaxed)
}

#[test]
fn a_plan_whose_winner_fails_keeps_what_it_fell_back_to() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    static COSTS: AtomicUsize = AtomicUsize::new(0);
    // Its cost is asked whenever rows are judged, and after that it is run.
    let counted = Row {
        cost: |_, _, _| {
            COSTS.fetch_add(1, Ordering::Relaxed);
            1e9
        },
        run: |_, _, _, _| {
            RUNS.fetch_add(1, Ordering::Relaxed);
            Err(no_luck())
        },
        ..broken()
    };
    let kept = Cache::poisoned(&context(&[counted], true), &[(usual().name, 1e-3), ("gemm.cpu.broken", 1e-9)]);
    let ctx = context(&[counted], true).with_tuning(&kept.cache);
    // As the layers of a model: each has a plan of its own for the same problem.
    let plans = [(); 3].map(|()| ctx.plan::<Gemm>(problem(), &[CALL]).unwrap());
    let copy = plans[0].clone();
    assert_eq!(plans[0].rows()[0].1.row().name, "gemm.cpu.broken");
    let a = ctx.tensor(&[1.0f32; M * K], &[1, M, K]).unwrap();
    let b = ctx.tensor(&[1.0f32; K * N], &[1, K, N]).unwrap();
    let mut d = ctx.tensor(&[0.0f32; M * N], &[1, M, N]).unwrap();
    let inputs = [Some(a.view()), Some(b.view()), None, None, None, None, None];
    let counts = || [&RUNS, &COSTS].map(|count| count.swap(0, Ordering::Relaxed));
    counts();
    let mut run = |plan: &Planned<Gemm>| {
        let ((), record) = ctx.record(|| plan.run(&ctx, &CALL, &inputs, &[d.view_mut().unwrap()]).unwrap());
        assert_eq!(record.launches.iter().map(|launched| launched.row).collect::<Vec<_>>(), [usual().name]);
        assert_eq!(d.to_vec::<f32>().unwrap(), vec![K as f32; M * N]);
    };
    assert_eq!(warnings(|| run(&plans[0])), 1);
    let [runs, costs] = counts();
    assert!(runs == 1 && costs > 0, "{runs} runs, {costs} costs");
    // Explaining the record asks for costs as well: runs without one.
    let again = |plan: &Planned<Gemm>| {
        for _ in 0..3 {
            let mut d = ctx.tensor(&[0.0f32; M * N], &[1, M, N]).unwrap();
            plan.run(&ctx, &CALL, &inputs, &[d.view_mut().unwrap()]).unwrap();
            assert_eq!(d.to_vec::<f32>().unwrap(), vec![K as f32; M * N]);
        }
        counts()
    };
    assert_eq!(warnings(|| assert_eq!(again(&plans[0]), [0, 0])), 0);
    assert_eq!(warnings(|| assert_eq!(again(&copy), [0, 0])), 0);
    // The others find out once each, and from the first what to run.
    for plan in &plans[1..] {
        assert_eq!(warnings(|| assert_eq!(again(plan), [1, 0])), 0);
    }
    // So does whoever has no plan.
    let values = product(&ctx);
    assert_eq!((values, counts()[0]), (product(&context(&[], true)), 0));
}

#[test]
fn what_fell_back_keeps_its_arithmetic_in_every_call() {
    let named = |row: Row<Gemm>| Row { arithmetic: Arithmetic::named("gemm.other"), ..row };
    // What decides the arithmetic is predicted to be fastest, and fails; the other of its arithmetic to be slowest.
    let first = named(Row { name: "gemm.cpu.first", cost: |_, _, _| 0.0, ..broken() });
    let rows = [first, named(twin())];
    let kept = Cache::poisoned(&context(&rows, true), &[("gemm.cpu.first", 1e-9), ("gemm.cpu.twin", 1e-3)]);
    let ctx = context(&rows, true).with_tuning(&kept.cache);
    assert_eq!(chosen(&ctx), "gemm.cpu.first");
    product(&ctx);
    assert_eq!(chosen(&ctx), "gemm.cpu.twin");
    for m in [1, 3, 100] {
        assert_eq!(ctx.choose::<Gemm>(&problem(), &GemmDynamic { batch: 1, m }).unwrap().name, "gemm.cpu.twin");
    }
    // Where no other has its arithmetic none of another takes its place.
    let kept = Cache::poisoned(&context(&[first], true), &[("gemm.cpu.first", 1e-9)]);
    let ctx = context(&[first], true).with_tuning(&kept.cache);
    let x = ctx.tensor(&[1.0f32; M * K], &[M, K]).unwrap();
    let y = ctx.tensor(&[1.0f32; K * N], &[K, N]).unwrap();
    let error = matmul(&x, &y).run(&ctx).unwrap_err();
    assert!(error.to_string().contains("no luck"), "{error}");
}

#[test]
fn a_third_row_serves_where_the_winner_and_the_prediction_fail() {
    // Before the usual row by prediction, and between it and the winner.
    let first = Row { name: "gemm.cpu.first", cost: |_, _, _| 0.0, ..broken() };
    let rows = [first, broken(), twin()];
    let times = [("gemm.cpu.first", 1e-3), ("gemm.cpu.broken", 1e-9), (usual().name, 2e-3), ("gemm.cpu.twin", 3e-3)];
    let kept = Cache::poisoned(&context(&rows, true), &times);
    let ctx = context(&rows, true).with_tuning(&kept.cache);
    assert_eq!(chosen(&ctx), "gemm.cpu.broken");
    assert_eq!(product(&ctx), product(&context(&[], true)));
    // What is tuned tells of those that failed: neither is chosen.
    let ctx = context(&rows, true);
    ctx.choose::<Gemm>(&problem(), &CALL).unwrap();
    let tuned = tune(&ctx, &Budget::default()).unwrap();
    assert_eq!(tuned.problems[0].predicted, "gemm.cpu.first");
    let kept = Cache::new();
    kept.cache.save(&ctx, &tuned).unwrap();
    let ctx = context(&rows, true).with_tuning(&kept.cache);
    let runs = [usual().name, "gemm.cpu.twin"];
    assert!(runs.contains(&tuned.problems[0].winner) && chosen(&ctx) == tuned.problems[0].winner);
}

#[test]
fn times_are_shown_of_the_call_that_was_measured_only() {
    let kept = Cache::poisoned(&context(&[twin()], true), &[(usual().name, 2e-3), ("gemm.cpu.twin", 1e-3)]);
    let ctx = context(&[twin()], true).with_tuning(&kept.cache);
    let bucket = <Gemm as sinew_kernels::Operator>::bucket(CALL);
    let other = [5, 6].map(|m| GemmDynamic { batch: 1, m }).into_iter().find(|call| *call != bucket).unwrap();
    for (call, measured_s) in [(bucket, Some(1e-3)), (other, None)] {
        let explanation = ctx.explain::<Gemm>(&problem(), &call).unwrap();
        let choice = explanation.choice().unwrap();
        assert_eq!((choice.row, choice.measured_s), ("gemm.cpu.twin", measured_s), "{explanation}");
        assert!(choice.verdict.contains("measured"), "{explanation}");
    }
}

#[test]
fn what_was_not_measured_is_not_printed_as_measured() {
    let kept = Cache::poisoned(&context(&[], true), &[(usual().name, 1e-3)]);
    let ctx = context(&[], true).with_tuning(&kept.cache);
    let call = <Gemm as sinew_kernels::Operator>::bucket(CALL);
    let explanation = ctx.explain::<Gemm>(&problem(), &call).unwrap();
    assert!(explanation.candidates.iter().any(|candidate| candidate.verdict.starts_with("refused: ")));
    let printed = explanation.to_string();
    let measured: Vec<&str> = printed.lines().filter(|line| line.contains(" µs measured ")).collect();
    assert!(measured.len() == 1 && measured[0].contains("1000.0 µs measured  chosen"), "{printed}");
    assert!(!printed.contains("- measured"), "{printed}");
}

#[test]
fn what_is_not_of_this_version_these_rows_and_this_user_counts_as_nothing() {
    type Spoil = fn(&Cache);
    let spoils: [(&str, Spoil); 4] = [
        ("nothing", |_| ()),
        ("damage", |kept| {
            let mut bytes = fs::read(kept.file()).unwrap();
            *bytes.last_mut().unwrap() ^= 0x10;
            fs::write(kept.file(), bytes).unwrap();
        }),
        ("another version", |kept| {
            kept.change(|key, contents| (key.replacen(env!("CARGO_PKG_VERSION"), "99.0.0", 1), contents));
        }),
        ("contents of another form", |kept| kept.change(|key, _| (key, Value::from("times")))),
    ];
    for (spoil, how) in spoils {
        let kept = Cache::poisoned(&context(&[twin()], true), &[(usual().name, 2e-3), ("gemm.cpu.twin", 1e-3)]);
        how(&kept);
        let winner = if spoil == "nothing" { "gemm.cpu.twin" } else { usual().name };
        assert_eq!(chosen(&context(&[twin()], true).with_tuning(&kept.cache)), winner, "{spoil}");
        // Another set of rows.
        assert_eq!(chosen(&context(&[twin(), broken()], true).with_tuning(&kept.cache)), usual().name);
        // What was spoiled is replaced as soon as something is measured.
        let ctx = context(&[twin()], true);
        kept.cache.save(&ctx, &measured(&ctx)).unwrap();
        let explanation = ctx.with_tuning(&kept.cache).explain::<Gemm>(&problem(), &CALL).unwrap();
        assert!(explanation.choice().unwrap().measured_s.is_some(), "{spoil}: {explanation}");
    }
}

#[test]
fn a_row_that_failed_when_it_was_tuned_says_so() {
    let fast_and_broken = Row { cost: |_, _, _| 0.0, ..broken() };
    let all = || context(&[fast_and_broken, twin()], true);
    let kept = Cache::new();
    kept.cache.save(&all(), &measured(&all())).unwrap();
    let explanation = all().with_tuning(&kept.cache).explain::<Gemm>(&problem(), &CALL).unwrap();
    let verdict = |row: &str| {
        let of_row = explanation.candidates.iter().find(|candidate| candidate.row == row);
        of_row.unwrap_or_else(|| panic!("{row} in {explanation}")).verdict.clone()
    };
    assert_eq!(verdict("gemm.cpu.broken"), "failed when it was tuned");
    let choice = explanation.choice().unwrap().row;
    assert_ne!(choice, "gemm.cpu.broken");
    assert!(verdict(choice).contains("predicted to be faster failed"), "{explanation}");
}

#[test]
fn a_few_runs_choose_nothing_and_replace_nothing_and_what_is_known_comes_last() {
    let rows = [boastful()];
    let kept = Cache::new();
    let few = |runs| {
        let ctx = context(&rows, true).with_tuning(&kept.cache);
        ctx.choose::<Gemm>(&problem(), &CALL).unwrap();
        let tuned = tune(&ctx, &Budget { runs, ..Budget::default() }).unwrap();
        kept.cache.save(&ctx, &tuned).unwrap();
        (tuned, chosen(&context(&rows, true).with_tuning(&kept.cache)))
    };
    assert_eq!(few(2).1, "gemm.cpu.boastful");
    let (tuned, winner) = few(7);
    // Which of the others measures fastest depends on the machine and on what else it does.
    assert_ne!(winner, "gemm.cpu.boastful");
    assert_eq!(tuned.problems[0].winner, winner);
    assert_eq!(few(2).1, winner);
    // Of two problems the one that is known comes last, though it is the shorter.
    let ctx = context(&rows, true).with_tuning(&kept.cache);
    let longer = GemmStatic { n: 4 * N, ..problem() };
    for fixed in [&problem(), &longer] {
        ctx.choose::<Gemm>(fixed, &CALL).unwrap();
    }
    let order: Vec<String> = tune(&ctx, &Budget::default()).unwrap().problems.into_iter().map(|p| p.problem).collect();
    assert!(order[0].starts_with(&longer.to_string()), "{order:?}");
}

#[test]
fn times_of_two_sets_of_rows_are_kept_beside_each_other() {
    let kept = Cache::new();
    let registries = [|| context(&[twin()], true), || context(&[], true)];
    for registry in registries {
        kept.cache.save(&registry(), &measured(&registry())).unwrap();
    }
    for registry in registries {
        let explanation = registry().with_tuning(&kept.cache).explain::<Gemm>(&problem(), &CALL).unwrap();
        assert!(explanation.choice().unwrap().measured_s.is_some(), "{explanation}");
    }
}

#[cfg(unix)]
#[test]
fn what_others_could_have_written_counts_as_nothing() {
    use std::os::unix::fs::PermissionsExt;

    let kept = Cache::poisoned(&context(&[twin()], true), &[(usual().name, 2e-3), ("gemm.cpu.twin", 1e-3)]);
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let choice = || chosen(&context(&[twin()], true).with_tuning(&kept.cache));
    assert_eq!(choice(), "gemm.cpu.twin");
    set(&kept.file(), 0o622);
    assert_eq!(choice(), usual().name);
    set(&kept.file(), 0o600);
    set(kept.file().parent().unwrap(), 0o777);
    assert_eq!(choice(), usual().name);
    let ctx = context(&[twin()], true);
    assert!(kept.cache.save(&ctx, &measured(&ctx)).is_err());
}

#[test]
fn times_that_are_saved_at_the_same_time_are_all_kept() {
    let kept = Cache::new();
    let fixed = |n: usize| GemmStatic { n, ..problem() };
    let all = 1..=6;
    std::thread::scope(|scope| {
        for n in all.clone() {
            let cache = &kept.cache;
            scope.spawn(move || {
                let ctx = context(&[], true);
                ctx.choose::<Gemm>(&fixed(n), &CALL).unwrap();
                let tuned = tune(&ctx, &Budget::default()).unwrap();
                (0..10).for_each(|_| cache.save(&ctx, &tuned).unwrap());
            });
        }
    });
    let ctx = context(&[], true).with_tuning(&kept.cache);
    for n in all {
        let explanation = ctx.explain::<Gemm>(&fixed(n), &CALL).unwrap();
        assert!(explanation.choice().unwrap().measured_s.is_some(), "{explanation}");
    }
}

#[test]
fn a_tuning_that_is_broken_off_or_dies_leaves_what_it_measured() {
    let fixed = |n: usize| GemmStatic { n, ..problem() };
    let all = [1, 2, 3];
    for dies in [false, true] {
        let kept = Cache::new();
        let ctx = context(&[], true);
        for n in all {
            ctx.choose::<Gemm>(&fixed(n), &CALL).unwrap();
        }
        let mut left = Vec::new();
        let tuning = catch_unwind(AssertUnwindSafe(|| {
            tune_while(&ctx, &Budget::default(), &mut |so_far| {
                kept.cache.save(&ctx, so_far).unwrap();
                left.push(so_far.left);
                match so_far.problems.len() {
                    1 => ControlFlow::Continue(()),
                    _ if dies => panic!("between two problems"),
                    _ => ControlFlow::Break(()),
                }
            })
            .unwrap()
        }));
        assert_eq!((tuning.is_err(), &left[..]), (dies, &[2, 1][..]));
        if let Ok(tuned) = tuning {
            assert_eq!((tuned.problems.len(), tuned.left), (2, 1));
        }
        let ctx = context(&[], true).with_tuning(&kept.cache);
        let is_known = |n: &usize| {
            let explanation = ctx.explain::<Gemm>(&fixed(*n), &CALL).unwrap();
            explanation.choice().unwrap().measured_s.is_some()
        };
        assert_eq!(all.iter().filter(|n| is_known(n)).count(), 2);
    }
}

#[test]
fn times_of_rows_that_one_policy_leaves_out_outlive_its_tuning() {
    let kept = Cache::new();
    let measured = |ctx: &Context| {
        let explanation = ctx.explain::<Gemm>(&problem(), &CALL).unwrap();
        let timed = explanation.candidates.iter().filter(|row| row.measured_s.is_some());
        timed.map(|row| row.row).collect::<BTreeSet<_>>()
    };
    let tuned_by = |deterministic: bool| {
        let ctx = context(&[], deterministic);
        ctx.choose::<Gemm>(&problem(), &CALL).unwrap();
        kept.cache.save(&ctx, &tune(&ctx, &Budget::default()).unwrap()).unwrap();
        measured(&context(&[], false).with_tuning(&kept.cache))
    };
    let of_all = tuned_by(false);
    assert!(of_all.len() > 1, "the test has lost its point: {of_all:?}");
    assert_eq!(tuned_by(true), of_all);
}

#[test]
fn every_problem_is_measured_once_while_there_is_time_and_none_after_it() {
    let ctx = context(&[twin(), broken()], true);
    for m in [1, 2, 5, 6] {
        ctx.choose::<Gemm>(&problem(), &GemmDynamic { batch: 1, m }).unwrap();
    }
    // Five and six rows are in one bucket.
    let tuned = tune(&ctx, &Budget::default()).unwrap();
    assert_eq!((tuned.problems.len(), tuned.left), (3, 0));
    for problem in &tuned.problems {
        assert_eq!((problem.operator, problem.predicted), ("gemm", usual().name));
        assert!(problem.times.seconds("gemm.cpu.twin").is_some());
        assert_eq!(problem.times.seconds("gemm.cpu.broken"), None);
        assert!(matches!(&problem.failed[..], [("gemm.cpu.broken", how)] if how.contains("no luck")));
    }
    let none = tune(&ctx, &Budget { time: Duration::ZERO, ..Budget::default() }).unwrap();
    assert_eq!((none.problems.len(), none.left), (0, 3));
    let endless = tune(&ctx, &Budget { time: Duration::MAX, ..Budget::default() }).unwrap();
    assert_eq!((endless.problems.len(), endless.left), (3, 0));
    assert!(tuned.seconds < 60.0, "{} s", tuned.seconds);
}

/// A launch of a plan neither asks a row again whether it takes the problem, nor how much workspace it needs.
#[test]
fn planned_launches_ask_nothing_again() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let asked = Row {
        name: "gemm.cpu.asked",
        admits: |_, _| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Ok(())
        },
        workspace: |_, _, _| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            0
        },
        cost: |_, _, _| 0.0,
        ..usual()
    };
    let ctx = context(&[asked], true);
    let plan = ctx.plan::<Gemm>(problem(), &[CALL]).unwrap();
    assert_eq!(plan.rows()[0].1.row().name, "gemm.cpu.asked");
    let a = ctx.tensor(&[1.0f32; M * K], &[1, M, K]).unwrap();
    let b = ctx.tensor(&[1.0f32; K * N], &[1, K, N]).unwrap();
    let mut d = ctx.tensor(&[0.0f32; M * N], &[1, M, N]).unwrap();
    assert!(ASKED.swap(0, Ordering::Relaxed) > 0);
    for _ in 0..2 {
        // The plan made no room for the row's workspace, which the first launch does.
        plan.run(&ctx, &CALL, &[Some(a.view()), Some(b.view())], &[d.view_mut().unwrap()]).unwrap();
        assert_eq!(d.to_vec::<f32>().unwrap(), vec![K as f32; M * N]);
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 0);
}
