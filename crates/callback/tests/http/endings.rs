//! Receivers that do not answer as they should: what becomes of the delivery, and how long it may take.

use std::time::Duration;

use relais_callback::{HttpSender, HttpSenderError, HttpSenderOptions};
use relais_core::ReplyOutcome;
use tokio::{io::AsyncReadExt, net::TcpListener, sync::mpsc::unbounded_channel};

use crate::{
    receiver::{LOOPBACK, Receiver, full},
    support::*,
};

#[tokio::test]
async fn a_callback_to_a_receiver_that_never_answers_times_out() {
    let (left, mut leaves) = unbounded_channel();
    let receiver = Receiver::start(move |mut connection| {
        let left = left.clone();
        async move {
            connection.request().await;
            connection.left_alone().await;
            left.send(()).unwrap();
        }
    })
    .await;
    let (reply, took) = timed(&callback_sender(hurried(receiver.port())), &receiver.url()).await;
    assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, "no answer within 300ms", None));
    assert!((SHORT..AT_MOST).contains(&took), "{took:?}");
    soon(leaves.recv()).await.expect("the connection is closed, not kept");
}

#[tokio::test]
async fn slow_headers_do_not_move_the_deadline() {
    let receiver = Receiver::start(|mut connection| async move {
        connection.request().await;
        connection.say("HTTP/1.1 200 OK\r\nx-slow: ").await;
        while connection.say("a").await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let (reply, took) = timed(&callback_sender(hurried(receiver.port())), &receiver.url()).await;
    assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, "no answer within 300ms", None));
    assert!((SHORT..AT_MOST).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_slow_body_does_not_move_the_deadline_and_the_status_counts() {
    for (line, outcome) in [("200 OK", ReplyOutcome::Delivered), ("500 Oh", UNWELL)] {
        let (gave_up, mut gives_up) = unbounded_channel();
        let receiver = Receiver::start(move |mut connection| {
            let gave_up = gave_up.clone();
            async move {
                connection.request().await;
                connection.say(format!("HTTP/1.1 {line}\r\ncontent-length: 100000\r\n\r\n")).await;
                while connection.say("x").await {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                gave_up.send(()).unwrap();
            }
        })
        .await;
        // Enough for the status to arrive on a busy machine.
        let options = HttpSenderOptions { timeout: 10 * SHORT, ..options(receiver.port()) };
        let (reply, took) = timed(&callback_sender(options), &receiver.url()).await;
        assert_eq!((reply.outcome, reply.status), (outcome, line[..3].parse().ok()));
        assert!((10 * SHORT..AT_MOST).contains(&took), "{took:?}");
        assert!(reply.answer.is_some_and(|answer| answer.starts_with('x') && answer.len() < 1000));
        soon(gives_up.recv()).await.expect("the connection is closed, not kept");
    }
}

#[tokio::test]
async fn an_endless_or_huge_body_is_read_up_to_the_cap() {
    for head in ["transfer-encoding: chunked", "content-length: 10737418240", "connection: close"] {
        let (said, mut says) = unbounded_channel();
        let receiver = Receiver::start(move |mut connection| {
            let said = said.clone();
            async move {
                connection.request().await;
                connection.say(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n")).await;
                let data = "x".repeat(0x4000);
                let piece = if head.ends_with("chunked") { format!("4000\r\n{data}\r\n") } else { data };
                let mut bytes = 0;
                while connection.say(&piece).await {
                    bytes += piece.len();
                }
                said.send(bytes).unwrap();
            }
        })
        .await;
        // The deadline is far: what ends this is the cap.
        let (reply, took) = timed(&callback_sender(options(receiver.port())), &receiver.url()).await;
        assert_eq!((reply.outcome, reply.status), (ReplyOutcome::Delivered, Some(200)), "{head}");
        assert_eq!(reply.answer, Some("x".repeat(1024)), "{head}");
        assert!(took < AT_MOST, "{head}: {took:?}");
        // The kernel's buffers take some of it too.
        let bytes = soon(says.recv()).await.unwrap();
        assert!(bytes < 16 << 20, "{head}: {bytes} bytes were taken");
    }
}

#[tokio::test]
async fn the_cap_and_the_excerpt_are_the_operators() {
    let receiver = Receiver::answering("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789").await;
    let options = HttpSenderOptions { answer_limit: 4, excerpt_limit: 3, ..options(receiver.port()) };
    assert_eq!(send(&callback_sender(options), &receiver.url()).await.answer.as_deref(), Some("012"));
}

#[tokio::test]
async fn a_body_that_is_cut_off_changes_nothing() {
    let receiver = Receiver::answering("HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\nhalf of i").await;
    let reply = send(&callback_sender(options(receiver.port())), &receiver.url()).await;
    assert_eq!((reply.outcome, reply.answer.as_deref()), (ReplyOutcome::Delivered, Some("half of i")));
}

#[tokio::test]
async fn a_connection_reset_is_reported() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut some = [0; 16];
        stream.read_exact(&mut some).await.unwrap();
        stream.set_zero_linger().unwrap();
    });
    let reply = send(&callback_sender(options(address.port())), &format!("http://{address}/")).await;
    assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, "the connection was cut", None));
}

#[tokio::test]
async fn a_connection_closed_without_an_answer_is_reported() {
    let receiver = Receiver::answering("").await;
    let reply = send(&callback_sender(options(receiver.port())), &receiver.url()).await;
    let error = "the connection was closed before there was an answer";
    assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, error, None));

    let receiver = Receiver::answering("HTTP/1.1 200 OK\r\ncontent-le").await;
    let reply = send(&callback_sender(options(receiver.port())), &receiver.url()).await;
    assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, error, None));
}

#[tokio::test]
async fn garbage_is_not_an_answer() {
    for garbage in [
        "SSH-2.0-OpenSSH_9.2p1\r\n",
        "\x15\x03\x01\x00\x02\x02\x50",
        "220 smtp.example.org ESMTP\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
    ] {
        let receiver = Receiver::answering(garbage).await;
        let reply = send(&callback_sender(options(receiver.port())), &receiver.url()).await;
        assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, "the answer is not HTTP", None), "{garbage:?}");
    }
}

#[tokio::test]
async fn headers_that_are_too_large_are_not_taken() {
    for line in [format!("x-large: {}", "a".repeat(0x4000)), "x-many: a\r\n".to_owned()] {
        let receiver = Receiver::start(move |mut connection| {
            let line = line.clone();
            async move {
                connection.request().await;
                connection.say("HTTP/1.1 200 OK\r\n").await;
                while connection.say(&line).await {}
            }
        })
        .await;
        let (reply, took) = timed(&callback_sender(options(receiver.port())), &receiver.url()).await;
        let error = "the headers of the answer are too large";
        assert_eq!((reply.outcome, why(&reply), reply.status), (UNWELL, error, None));
        assert!(took < AT_MOST, "{took:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_reported() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let reply = send(&callback_sender(options(address.port())), &format!("http://{address}/")).await;
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, "connection refused"));
}

#[tokio::test]
async fn a_callback_to_a_host_that_accepts_no_connection_times_out() {
    let (listener, _queue) = full((LOOPBACK, 0).into()).await;
    let address = listener.local_addr().unwrap();
    let (reply, took) = timed(&callback_sender(hurried(address.port())), &format!("http://{address}/")).await;
    assert_eq!((reply.outcome, why(&reply)), (UNWELL, "no answer within 300ms"));
    assert!((SHORT..AT_MOST).contains(&took), "{took:?}");
}

#[test]
fn a_sender_without_a_timeout_is_refused() {
    for timeout in [Duration::ZERO, Duration::from_secs(3601), Duration::MAX] {
        let callback_sender = HttpSender::new(HttpSenderOptions { timeout, ..HttpSenderOptions::default() });
        assert!(matches!(callback_sender, Err(HttpSenderError::Timeout(_))), "{timeout:?}");
    }
}
