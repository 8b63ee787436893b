//! Each rule of the command runner, on real processes. The shell is the command.

use std::{fs, time::Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use relais_handler::{Return, erase};

/// How long anything may take before a test is failed for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder in which a script says what it did: the tests wait for its files.
struct Scene {
    folder: TempDir,
    cancel: CancellationToken,
    context: Context,
}

impl Scene {
    fn new() -> Self {
        let cancel = CancellationToken::new();
        let (context, _) = crate::context::cancelled_by(cancel.clone());
        Self { folder: tempfile::tempdir().unwrap(), cancel, context }
    }

    /// `$0` is the folder.
    fn runner(&self, script: &str) -> CommandRunner {
        let folder = self.folder.path().as_os_str().to_owned();
        CommandRunner::new("print", "/bin/sh", [OsString::from("-c"), script.into(), folder])
    }

    async fn run(&self, runner: CommandRunner, body: &str) -> Result<String, HandlerError> {
        let body = RawValue::from_string(body.to_owned()).unwrap();
        let ended = timeout(PATIENCE, runner.run(body, self.context.clone())).await;
        ended.expect("the command took too long").map(|response| response.get().to_owned())
    }

    async fn sh(&self, script: &str) -> Result<String, HandlerError> {
        self.run(self.runner(script), r#"{"n": 1}"#).await
    }

    /// Waits until the script has written a number into a file.
    async fn pid(&self, name: &str) -> Pid {
        let path = self.folder.path().join(name);
        let written = async {
            loop {
                match fs::read_to_string(&path) {
                    Ok(text) if text.ends_with('\n') => break text.trim().parse().unwrap(),
                    _ => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let pid = timeout(PATIENCE, written).await.unwrap_or_else(|_| panic!("{name} was never written"));
        Pid::from_raw(pid).unwrap()
    }
}

/// Waits until a process is gone, or is a zombie that its new parent has not reaped yet.
async fn gone(pid: Pid) {
    let gone = async {
        while test_kill_process(pid).is_ok() {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
            if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("process {} lives on", pid.as_raw_pid()));
}

#[tokio::test]
async fn the_body_goes_in_and_the_response_comes_out() {
    let scene = Scene::new();
    assert_eq!(scene.sh("echo working; cat").await.unwrap(), r#"{"n": 1}"#);
    assert_eq!(scene.sh("echo done.").await.unwrap(), "null");
}

#[tokio::test]
async fn the_environment_names_the_task_and_hides_what_is_to_be_hidden() {
    let scene = Scene::new();
    let script =
        r#"echo "\"$RELAIS_TASK_ID $RELAIS_ATTEMPT $RELAIS_SERVICE ${RELAIS_CORRELATION_ID-none} ${HOME-none}\"""#;
    let runner = scene.runner(script).hide(["HOME"]);
    assert_eq!(scene.run(runner, "{}").await.unwrap(), r#""t 1 print none none""#);
}

#[tokio::test]
async fn an_exit_code_is_a_failure_with_the_end_of_stderr() {
    let scene = Scene::new();
    let error = scene.sh("echo progress 5 >&2; echo no paper >&2; exit 3").await.unwrap_err();
    assert_eq!(error.to_string(), "no paper");
    assert_eq!(scene.sh("exit 3").await.unwrap_err().to_string(), "the command ended with exit code 3");
    let error =
        scene.sh("head -c 100000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1").await.unwrap_err().to_string();
    assert!(error.len() <= 4096 && error.ends_with("xend"), "{} bytes", error.len());
}

#[tokio::test]
async fn a_signal_is_a_failure_that_names_it() {
    let scene = Scene::new();
    for (signal, name) in [("SEGV", "SIGSEGV"), ("KILL", "SIGKILL (out of memory?)"), ("USR1", "signal 10")] {
        let error = scene.sh(&format!("kill -s {signal} $$")).await.unwrap_err();
        assert_eq!(error.to_string(), format!("the command was killed by {name}"));
    }
}

#[tokio::test]
async fn exit_code_75_gives_the_task_back() {
    let scene = Scene::new();
    let runner = scene.runner("echo later >&2; exit 75");
    let body = RawValue::from_string("{}".to_owned()).unwrap();
    let returned = erase(runner.handler())(body, scene.context.clone()).await;
    assert!(matches!(&returned, Return::Again(why) if why == "later"), "{returned:?}");
}

#[tokio::test]
async fn a_command_that_can_not_be_started_gives_the_task_back() {
    let scene = Scene::new();
    let runner = CommandRunner::new("print", scene.folder.path().join("nothing"), [] as [&str; 0]);
    assert_eq!(runner.check().unwrap_err().kind(), io::ErrorKind::NotFound);
    let body = RawValue::from_string("{}".to_owned()).unwrap();
    let returned = erase(runner.handler())(body, scene.context.clone()).await;
    assert!(matches!(&returned, Return::Again(why) if why.starts_with("failed to start")), "{returned:?}");
}

#[test]
fn a_program_is_looked_for_where_the_system_would() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), "").unwrap();
    let path = Some(folder.path().as_os_str());
    assert_eq!(find(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin"))).unwrap(), Path::new("/bin/sh"));
    assert_eq!(find(OsStr::new("plain"), path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(find(OsStr::new("sh"), path).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(find(OsStr::new("/bin"), None).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[tokio::test]
async fn too_much_output_is_a_failure_that_says_so() {
    let scene = Scene::new();
    let runner = scene.runner("head -c 1000 /dev/zero | tr '\\0' x").stdout_limit(999);
    let error = scene.run(runner, "{}").await.unwrap_err();
    assert_eq!(error.to_string(), "the command wrote more than 999 bytes to stdout");
    // One that would never end by itself.
    let runner =
        scene.runner("trap '' PIPE; echo $$ >$0/pid; while :; do echo yes; done 2>/dev/null").stdout_limit(9999);
    assert!(scene.run(runner, "{}").await.unwrap_err().to_string().contains("9999 bytes"));
    gone(scene.pid("pid").await).await;
}

#[tokio::test]
async fn input_that_nobody_reads_is_no_trouble() {
    let scene = Scene::new();
    let body = format!("\"{}\"", "x".repeat(1 << 20));
    assert_eq!(scene.run(scene.runner("echo 1"), &body).await.unwrap(), "1");
    assert_eq!(scene.run(scene.runner("exec <&-; echo 2"), &body).await.unwrap(), "2");
    assert_eq!(scene.run(scene.runner("head -c 1 >/dev/null; echo 3"), &body).await.unwrap(), "3");
    assert_eq!(scene.run(scene.runner("cat >/dev/null & cat >/dev/null; echo 4"), &body).await.unwrap(), "4");
}

#[tokio::test]
async fn a_big_body_goes_in_while_a_big_response_comes_out() {
    let scene = Scene::new();
    let body = format!("\"{}\"", "x".repeat(900_000));
    assert_eq!(scene.run(scene.runner("cat"), &body).await.unwrap(), body);
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_killed() {
    let scene = Scene::new();
    // It even holds the pipes open.
    let started = Instant::now();
    assert_eq!(scene.sh("sleep 1000 & echo $! >$0/left; echo 1").await.unwrap(), "1");
    gone(scene.pid("left").await).await;
    assert!(started.elapsed() < PATIENCE);
}

#[tokio::test]
async fn a_process_that_leaves_the_group_does_not_lose_the_output() {
    let scene = Scene::new();
    let leaving = |name: &str| {
        format!("setsid sh -c 'echo $$ >$0/{name}; exec sleep 1000' $0 & until [ -s $0/{name} ]; do sleep 0.01; done; ")
    };
    assert_eq!(scene.sh(&(leaving("one") + "echo '{\"n\":1}'")).await.unwrap(), "{\"n\":1}");
    let error = scene.sh(&(leaving("two") + "printf 'no paper' >&2; exit 3")).await.unwrap_err();
    assert_eq!(error.to_string(), "no paper");
    for left in ["one", "two"] {
        kill_process(scene.pid(left).await, Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn the_time_limit_ends_the_whole_group() {
    let scene = Scene::new();
    // Longer than it takes to begin, on a busy machine.
    let limit = Duration::from_secs(5);
    let runner = scene.runner("echo hello >&2; sleep 1000 & echo $! >$0/child; wait").time_limit(Some(limit));
    let error = scene.run(runner, "{}").await.unwrap_err();
    assert_eq!(error.to_string(), "the command was stopped after 5s, its time limit: hello");
    gone(scene.pid("child").await).await;
}

#[tokio::test]
async fn a_command_that_will_not_end_is_killed() {
    let scene = Scene::new();
    let script = "trap '' TERM; echo $$ >$0/pid; while :; do sleep 1000; done";
    let runner = scene.runner(script).kill_after(Duration::from_millis(300));
    let (ended, pid) = tokio::join!(scene.run(runner, "{}"), async {
        let pid = scene.pid("pid").await;
        scene.cancel.cancel();
        pid
    });
    assert_eq!(ended.unwrap_err().to_string(), "stopped");
    gone(pid).await;
}

#[tokio::test]
async fn a_cancelled_command_may_clean_up_and_so_may_its_children() {
    let scene = Scene::new();
    // The leader dies at once, its child takes a moment.
    let script =
        "(trap 'sleep 0.2; echo 1 >$0/cleaned; exit' TERM; echo 1 >$0/ready; while :; do sleep 0.05; done) & wait";
    let runner = scene.runner(script);
    let (ended, ()) = tokio::join!(scene.run(runner, "{}"), async {
        scene.pid("ready").await;
        scene.cancel.cancel();
    });
    assert_eq!(ended.unwrap_err().to_string(), "stopped");
    assert!(scene.folder.path().join("cleaned").exists());
}

#[tokio::test]
async fn a_dropped_handler_leaves_nothing_behind() {
    let scene = Scene::new();
    let runner = scene.runner("trap '' TERM; sleep 1000 & echo $! >$0/child; echo $$ >$0/pid; wait");
    let (child, leader) = tokio::select! {
        ended = scene.run(runner, "{}") => panic!("{ended:?}"),
        pids = async { (scene.pid("child").await, scene.pid("pid").await) } => pids,
    };
    gone(child).await;
    gone(leader).await;
}

#[tokio::test]
#[ignore = "not a test: a worker that is killed, in a process that the next test starts"]
async fn killed_in_the_middle() {
    let folder = std::env::var_os("RELAIS_TEST_KILLED_IN").expect("a folder to write into");
    let script = "sleep 1000 & echo $! >$0/child; echo $$ >$0/pid; wait";
    let runner = CommandRunner::new("print", "/bin/sh", [OsString::from("-c"), script.into(), folder]);
    let body = RawValue::from_string("{}".to_owned()).unwrap();
    let _ = runner.run(body, crate::context::cancelled_by(CancellationToken::new()).0).await;
}

#[tokio::test]
async fn when_the_worker_is_killed_so_are_its_commands() {
    let scene = Scene::new();
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "command::tests::killed_in_the_middle"])
        .env("RELAIS_TEST_KILLED_IN", scene.folder.path())
        .kill_on_drop(true)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pids = [scene.pid("child").await, scene.pid("pid").await];
    let id = Pid::from_raw(worker.id().unwrap().cast_signed()).unwrap();
    kill_process(id, Signal::KILL).unwrap();
    worker.wait().await.unwrap();
    for pid in pids {
        gone(pid).await;
    }
}
