//! Names, and those who answer for them: an address is judged when it is connected to, not before.

use std::sync::Arc;

use relais_callback::{HttpSender, HttpSenderOptions};
use relais_core::ReplyOutcome;
use tokio::net::TcpListener;

use crate::{
    receiver::{LOOPBACK, OTHER, Receiver, answer_once, full, twins},
    support::*,
};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Stands for the public internet: only this address may be connected to.
fn only_other(port: u16) -> HttpSenderOptions {
    HttpSenderOptions { allow_networks: vec!["127.0.0.2".to_owned()], ..options(port) }
}

fn sender_with(options: HttpSenderOptions, script: &Arc<Script>) -> HttpSender {
    HttpSender::with_resolver(options, Arc::<Script>::clone(script)).unwrap()
}

/// A receiver that may not be reached, and one on the same port that may.
async fn private_and_public() -> (Receiver, Receiver) {
    let (private, public) = twins().await;
    let receiver = |listener: TcpListener| Receiver::on(listener, None, |it| answer_once(it, OK.into()));
    (receiver(private), receiver(public))
}

#[tokio::test]
async fn a_name_that_changes_its_answer_is_refused() {
    let (private, public) = private_and_public().await;
    let script = Script::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let callback_sender = sender_with(only_other(public.port()), &script);
    let target = format!("http://rebind.test:{}/", public.port());

    assert_eq!(send(&callback_sender, &target).await.outcome, ReplyOutcome::Delivered);
    let reply = send(&callback_sender, &target).await;
    assert_eq!((reply.outcome, why(&reply)), (ReplyOutcome::Forbidden, "the address 127.0.0.1 is not allowed"));
    assert_eq!((public.connections(), private.connections()), (1, 0));
    assert_eq!(script.asked(), ["rebind.test", "rebind.test"], "once for each connection, and never in between");
}

#[tokio::test]
async fn a_name_with_one_bad_address_is_refused() {
    let (private, public) = private_and_public().await;
    for answer in [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "10.0.0.1"]] {
        let callback_sender = sender_with(only_other(public.port()), &Script::new(&[&answer]));
        let reply = send(&callback_sender, &format!("http://mixed.test:{}/", public.port())).await;
        assert_eq!(reply.outcome, ReplyOutcome::Forbidden, "{answer:?}");
    }
    assert_eq!((public.connections(), private.connections()), (0, 0));
}

#[tokio::test]
async fn blocked_addresses_are_recognised_in_every_notation() {
    for address in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fd00:ec2::254",
        "fe80::1",
        "::",
        "0.0.0.0",
    ] {
        let script = Script::new(&[&[address]]);
        let options = HttpSenderOptions { allow_networks: Vec::new(), ..options(8080) };
        let reply = send(&sender_with(options, &script), "http://hidden.test:8080/").await;
        assert_eq!(reply.outcome, ReplyOutcome::Forbidden, "{address}");
        assert!(why(&reply).ends_with("is not allowed"), "{address}: {}", why(&reply));
        assert_eq!(script.asked(), ["hidden.test"]);
    }
}

#[tokio::test]
async fn a_kept_connection_goes_on_to_the_address_that_was_checked() {
    let (private, public) = twins().await;
    let private = Receiver::on(private, None, |it| answer_once(it, OK.into()));
    let mut public = Receiver::on(public, None, |mut connection| async move {
        while connection.request().await {
            connection.say("HTTP/1.1 204 Yes\r\n\r\n").await;
        }
    });
    let script = Script::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let callback_sender = sender_with(only_other(public.port()), &script);
    for _ in 0..3 {
        let reply = send(&callback_sender, &format!("http://kept.test:{}/", public.port())).await;
        assert_eq!(reply.outcome, ReplyOutcome::Delivered);
        assert_eq!(public.request().await.header("host"), format!("kept.test:{}", public.port()));
    }
    assert_eq!((script.asked().len(), private.connections()), (1, 0));
}

#[tokio::test]
async fn an_allowed_host_may_resolve_to_anything() {
    let receiver = Receiver::answering(OK).await;
    let options = HttpSenderOptions {
        allow_networks: Vec::new(),
        allow_hosts: vec!["inside".to_owned(), "*.svc.cluster.local".to_owned()],
        ..options(receiver.port())
    };
    let callback_sender = sender_with(options, &Script::new(&[&["127.0.0.1"]]));
    for (host, outcome) in [
        ("inside", ReplyOutcome::Delivered),
        ("INSIDE.", ReplyOutcome::Delivered),
        ("hook.svc.cluster.local", ReplyOutcome::Delivered),
        ("hook.example.org", ReplyOutcome::Forbidden),
        ("127.0.0.1", ReplyOutcome::Forbidden),
    ] {
        let reply = send(&callback_sender, &format!("http://{host}:{}/", receiver.port())).await;
        assert_eq!(reply.outcome, outcome, "{host}");
    }
    assert_eq!(receiver.connections(), 3);
}

#[tokio::test]
async fn the_systems_resolver_is_asked_unless_there_is_another() {
    let receiver = Receiver::answering(OK).await;
    let options = HttpSenderOptions { allow_hosts: vec!["localhost".to_owned()], ..options(receiver.port()) };
    let reply = send(&callback_sender(options), &format!("http://localhost:{}/", receiver.port())).await;
    assert_eq!(reply.outcome, ReplyOutcome::Delivered);
}

#[tokio::test]
async fn a_dead_address_leaves_time_for_the_next() {
    let (dead, _queue) = full((LOOPBACK, 0).into()).await;
    let public = TcpListener::bind((OTHER, dead.local_addr().unwrap().port())).await.unwrap();
    let public = Receiver::on(public, None, |it| answer_once(it, OK.into()));
    let options = HttpSenderOptions { timeout: 10 * SHORT, ..options(public.port()) };
    let callback_sender = sender_with(options, &Script::new(&[&["127.0.0.1", "127.0.0.2"]]));
    let (reply, took) = timed(&callback_sender, &format!("http://two.test:{}/", public.port())).await;
    assert_eq!((reply.outcome, why(&reply)), (ReplyOutcome::Delivered, ""));
    assert!(took >= 5 * SHORT, "{took:?}");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_reported() {
    let reply = send(&sender_with(options(8080), &Script::new(&[])), "http://nowhere.test:8080/").await;
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, "the name nowhere.test does not resolve"));
    let reply = send(&sender_with(options(8080), &Script::new(&[&[]])), "http://empty.test:8080/").await;
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, "the name empty.test does not resolve"));
}

#[tokio::test]
async fn the_deadline_covers_the_lookup() {
    let callback_sender = HttpSender::with_resolver(hurried(8080), Arc::new(Silence)).unwrap();
    let (reply, took) = timed(&callback_sender, "http://silent.test:8080/").await;
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, "no answer within 300ms"));
    assert!((SHORT..AT_MOST).contains(&took), "{took:?}");
}

#[tokio::test]
async fn addresses_never_reach_the_resolver() {
    let script = Script::new(&[&["127.0.0.2"]]);
    let receiver = Receiver::answering(OK).await;
    let callback_sender = sender_with(only_other(receiver.port()), &script);
    for host in ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]"] {
        let reply = send(&callback_sender, &format!("http://{host}:{}/", receiver.port())).await;
        assert_eq!(reply.outcome, ReplyOutcome::Forbidden, "{host}");
    }
    assert_eq!((script.asked().len(), receiver.connections()), (0, 0));
    assert_eq!(receiver.address.ip(), LOOPBACK);
}
