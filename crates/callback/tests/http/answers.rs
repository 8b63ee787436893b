//! What is sent, and what each answer means.

use std::{io::Read, sync::Arc, time::Duration};

use flate2::read::GzDecoder;
use relais_callback::{
    HttpSenderOptions,
    signature::{generate_secret, verify},
};
use relais_core::{CallbackDelivery, CallbackSender, CallbackType, ReplyOutcome, SigningSecret};

use crate::{receiver::Receiver, support::*};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nthanks";

fn status(line: &str, headers: &str) -> String {
    format!("HTTP/1.1 {line}\r\n{headers}content-length: 0\r\n\r\n")
}

fn secret(secret: &str, lasts: Option<Duration>) -> SigningSecret {
    SigningSecret { secret: secret.to_owned(), created: NOW, expires: lasts.map(|lasts| NOW.after(lasts)) }
}

#[tokio::test]
async fn a_callback_arrives_byte_for_byte() {
    let mut receiver = Receiver::answering(OK).await;
    let callback_sender = callback_sender(options(receiver.port()));
    let reply = send(&callback_sender, &receiver.url()).await;
    assert_eq!(reply.outcome, ReplyOutcome::Delivered);
    assert_eq!((reply.status, reply.error, reply.answer.as_deref()), (Some(200), None, Some("thanks")));

    let request = receiver.request().await;
    assert_eq!(request.line, "POST /hook?a=1 HTTP/1.1");
    assert_eq!(request.header("host"), receiver.address.to_string());
    assert_eq!(request.header("content-type"), "application/json");
    assert_eq!(request.header("webhook-id"), ID);
    assert_eq!(request.header("webhook-timestamp"), "784111777");
    assert_eq!(request.header("user-agent"), format!("relais/{}", env!("CARGO_PKG_VERSION")));
    for absent in ["webhook-signature", "content-encoding", "accept-encoding", "authorization", "cookie", "referer"] {
        assert!(!request.headers.contains_key(absent), "{absent}");
    }
    assert_eq!(request.body, BODY.as_bytes());
}

#[tokio::test]
async fn a_compressed_callback_over_http_is_signed_over_the_uncompressed_body() {
    let mut receiver = Receiver::answering(OK).await;
    let callback_sender = callback_sender(options(receiver.port()));
    let key = generate_secret().unwrap();
    for body in [BODY.to_owned(), format!("[{}0]", "123456789,".repeat(20_000))] {
        let client = Arc::new(client(vec![secret(&key, None)]));
        let delivery = CallbackDelivery { gzip: true, body: body.clone(), client, ..delivery(&receiver.url()) };
        assert_eq!(soon(callback_sender.send(&delivery)).await.outcome, ReplyOutcome::Delivered);

        let request = receiver.request().await;
        assert_eq!(request.header("content-encoding"), "gzip");
        let mut plain = String::new();
        GzDecoder::new(request.body.as_slice()).read_to_string(&mut plain).unwrap();
        assert_eq!(plain, body);
        let (timestamp, signature) = (request.header("webhook-timestamp"), request.header("webhook-signature"));
        verify(&key, ID, timestamp, plain.as_bytes(), signature, Duration::ZERO, NOW).unwrap();
    }
}

#[tokio::test]
async fn both_signing_secrets_sign_callbacks_during_rotation() {
    let mut receiver = Receiver::answering(OK).await;
    let callback_sender = callback_sender(options(receiver.port()));
    let [new, old, older] = std::array::from_fn(|_| generate_secret().unwrap());
    let secrets =
        vec![secret(&new, None), secret(&old, Some(Duration::from_secs(1))), secret(&older, Some(Duration::ZERO))];
    let delivery = CallbackDelivery { client: Arc::new(client(secrets)), ..delivery(&receiver.url()) };
    assert_eq!(soon(callback_sender.send(&delivery)).await.outcome, ReplyOutcome::Delivered);

    let request = receiver.request().await;
    let signature = request.header("webhook-signature");
    assert_eq!(signature.split(' ').count(), 2);
    let check =
        |key: &str| verify(key, ID, request.header("webhook-timestamp"), &request.body, signature, Duration::ZERO, NOW);
    assert_eq!(check(&new), Ok(()));
    assert_eq!(check(&old), Ok(()));
    assert!(check(&older).is_err());
}

#[tokio::test]
async fn a_callback_of_a_client_with_secrets_is_never_unsigned() {
    let receiver = Receiver::answering(OK).await;
    let callback_sender = callback_sender(options(receiver.port()));
    for (secrets, error) in [
        (vec![secret(&generate_secret().unwrap(), Some(Duration::ZERO))], "all signing secrets have expired"),
        (vec![secret("hush", None)], "a signing secret begins with whsec_"),
    ] {
        let delivery = CallbackDelivery { client: Arc::new(client(secrets)), ..delivery(&receiver.url()) };
        let reply = soon(callback_sender.send(&delivery)).await;
        assert_eq!(reply.outcome, ReplyOutcome::Forbidden);
        assert_eq!(why(&reply), format!("the callback can not be signed: {error}"));
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn the_status_of_an_answer_decides_whether_a_callback_is_retried() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    for (line, headers, outcome, error) in [
        ("202 Accepted", "", ReplyOutcome::Delivered, ""),
        ("204 No Content", "", ReplyOutcome::Delivered, ""),
        ("400 Bad Request", "", REFUSED, "answered 400 Bad Request"),
        ("404 Whatever", "", REFUSED, "answered 404 Not Found"),
        ("410 Gone", "", ReplyOutcome::Gone, "answered 410 Gone"),
        ("429 Slow", "", REFUSED, "answered 429 Too Many Requests"),
        (
            "429 Slow",
            "retry-after: 120\r\n",
            ReplyOutcome::Refused { retry_after: seconds(120) },
            "answered 429 Too Many Requests",
        ),
        (
            "429 Slow",
            "retry-after: Sun, 06 Nov 1994 09:49:37 GMT\r\n",
            ReplyOutcome::Refused { retry_after: Some(Duration::from_millis(3_599_500)) },
            "answered 429 Too Many Requests",
        ),
        (
            "503 Later",
            "retry-after: 9999999\r\n",
            ReplyOutcome::Unwell { retry_after: seconds(86_400) },
            "answered 503 Service Unavailable",
        ),
        ("500 Oh", "retry-after: 5\r\n", UNWELL, "answered 500 Internal Server Error"),
        ("502 Bad", "", UNWELL, "answered 502 Bad Gateway"),
        ("599 What", "", UNWELL, "answered 599"),
    ] {
        let answer = if line.starts_with("204") { format!("HTTP/1.1 {line}\r\n\r\n") } else { status(line, headers) };
        let receiver = Receiver::answering(answer).await;
        let reply = send(&callback_sender(options(receiver.port())), &receiver.url()).await;
        let expected_status = line[..3].parse().ok();
        assert_eq!((reply.outcome, why(&reply), reply.status), (outcome, error, expected_status), "{line} {headers}");
        assert_eq!(reply.answer, None, "{line}");
    }
}

#[tokio::test]
async fn a_redirect_is_reported_and_not_followed() {
    let private = Receiver::answering(OK).await;
    for code in [301, 302, 303, 307, 308] {
        let answer = status(&format!("{code} Go"), &format!("location: {}\r\n", private.url()));
        let public = Receiver::answering(answer).await;
        // Both may be called, so that nothing but the redirect stands between them.
        let options = HttpSenderOptions { ports: vec![public.port(), private.port()], ..options(0) };
        let reply = send(&callback_sender(options), &public.url()).await;
        assert_eq!((reply.outcome, reply.status), (REFUSED, Some(code)));
        // What follows the path may be a secret of somebody's.
        let end = format!(": redirects are not followed (to {})", private.url().split('?').next().unwrap());
        assert!(why(&reply).starts_with(&format!("answered {code} ")) && why(&reply).ends_with(&end), "{reply:?}");
    }
    assert_eq!(private.connections(), 0, "the private receiver sees nothing");
}

#[tokio::test]
async fn a_long_redirect_target_is_shortened() {
    let location = format!("location: https://example.org/{}\r\n", "a".repeat(5000));
    let receiver = Receiver::answering(status("302 Found", &location)).await;
    let reply = send(&callback_sender(options(receiver.port())), &receiver.url()).await;
    assert!(why(&reply).starts_with("answered 302 Found: redirects are not followed (to https://example.org/aaa"));
    assert!(why(&reply).len() < 200, "{}", why(&reply));
}

#[tokio::test]
async fn the_stored_answer_is_shortened_and_sanitized() {
    let body = format!("a\0b\u{1b}[31m\r\n{}", "é".repeat(2000));
    let answer = format!("HTTP/1.1 500 Oh\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let receiver = Receiver::answering(answer).await;
    let kept = send(&callback_sender(options(receiver.port())), &receiver.url()).await.answer.unwrap();
    assert!(kept.starts_with("ab\u{fffd}[31m  éé"), "{kept}");
    assert!((1000..=1024).contains(&kept.len()), "{}", kept.len());
}

#[tokio::test]
async fn a_compressed_answer_is_not_decompressed() {
    let mut encoder = flate2::read::GzEncoder::new([b'x'; 100_000].as_slice(), flate2::Compression::best());
    let mut body = Vec::new();
    encoder.read_to_end(&mut body).unwrap();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", body.len());
    let receiver = Receiver::answering([head.as_bytes(), &body].concat()).await;
    let reply = send(&callback_sender(options(receiver.port())), &receiver.url()).await;
    assert_eq!(reply.outcome, ReplyOutcome::Delivered);
    let kept = reply.answer.unwrap();
    assert!(kept.starts_with("\u{fffd}\u{fffd}") && !kept.contains("xxx"), "{kept:?}");
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let mut receiver = Receiver::start(|mut connection| async move {
        while connection.request().await {
            connection.say(OK).await;
        }
    })
    .await;
    let callback_sender = callback_sender(options(receiver.port()));
    for _ in 0..3 {
        assert_eq!(send(&callback_sender, &receiver.url()).await.outcome, ReplyOutcome::Delivered);
        assert_eq!(receiver.request().await.connection, 1);
    }
}

#[test]
fn a_callback_target_is_validated_without_dns() {
    let options = HttpSenderOptions { allow_http: true, ports: vec![80, 443, 8443], ..HttpSenderOptions::default() };
    let (callback_sender, client) = (callback_sender(options), client(Vec::new()));
    let judge = |kind, target: &str| callback_sender.judge(kind, target, &client).map_err(|refusal| refusal.0);
    for (kind, target, endpoint) in [
        (CallbackType::Https, "https://Example.org/a?b", "https://example.org:443"),
        (CallbackType::Https, "https://example.org.:8443/", "https://example.org:8443"),
        (CallbackType::Https, "https://bücher.example/", "https://xn--bcher-kva.example:443"),
        (CallbackType::Https, "https://[2606:4700:0::1111]/", "https://[2606:4700::1111]:443"),
        (CallbackType::Http, "http://example.org/", "http://example.org:80"),
    ] {
        assert_eq!(judge(kind, target).as_deref(), Ok(endpoint));
    }
    for (kind, target) in [
        (CallbackType::Https, "http://example.org/"),
        (CallbackType::Http, "https://example.org/"),
        (CallbackType::Amqp, "https://example.org/"),
        (CallbackType::Amqp, "orders"),
        (CallbackType::Https, "https://127.0.0.1/"),
        (CallbackType::Https, "https://example.org:22/"),
    ] {
        assert!(judge(kind, target).is_err(), "{kind:?} {target}");
    }
}

#[tokio::test]
async fn every_allowed_callback_target_can_be_called() {
    let receiver = Receiver::answering(OK).await;
    let callback_sender = callback_sender(options(receiver.port()));
    let mut called = 0;
    for c in (' '..='~').chain(['é', '\u{202e}', '😀']) {
        for place in ["path/", "path?query="] {
            let target = format!("http://{}/{place}{c}x", receiver.address);
            if callback_sender.judge(CallbackType::Http, &target, &client(Vec::new())).is_ok() {
                assert_eq!(send(&callback_sender, &target).await.outcome, ReplyOutcome::Delivered, "{target}");
                called += 1;
            }
        }
    }
    assert!(called > 180, "{called}");
}

#[tokio::test]
async fn a_callback_target_is_validated_again_before_sending() {
    let receiver = Receiver::answering(OK).await;
    for options in [
        HttpSenderOptions { allow_networks: Vec::new(), ..options(receiver.port()) },
        HttpSenderOptions { allow_http: false, ..options(receiver.port()) },
        HttpSenderOptions { ports: Vec::new(), ..options(receiver.port()) },
    ] {
        let reply = send(&callback_sender(options), &receiver.url()).await;
        assert_eq!((reply.outcome, reply.status), (ReplyOutcome::Forbidden, None));
        assert!(!why(&reply).is_empty());
    }
    let callback_sender = callback_sender(options(receiver.port()));
    let amqp = CallbackDelivery { kind: CallbackType::Amqp, ..delivery(&receiver.url()) };
    assert_eq!(soon(callback_sender.send(&amqp)).await.outcome, ReplyOutcome::Forbidden);
    let named = CallbackDelivery { id: "a\r\nb".to_owned(), ..delivery(&receiver.url()) };
    assert_eq!(soon(callback_sender.send(&named)).await.outcome, ReplyOutcome::Forbidden);
    assert_eq!(receiver.connections(), 0);
}
