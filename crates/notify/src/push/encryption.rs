//! The encryption of pushes: `aes128gcm` (RFC 8188) with keys by RFC 8291, in one record.

use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt},
    rand::{SecureRandom as _, SystemRandom},
};

use super::PushSubscription;

/// The size of the record that is announced; every push service takes so many bytes (RFC 8030, 7.2).
const RECORD_BYTES: u32 = 4096;
const SALT_BYTES: usize = 16;
const TAG_BYTES: usize = 16;

/// Salt, size of the record, length of the key, and the key.
const HEADER_BYTES: usize = SALT_BYTES + 4 + 1 + 65;

/// So many bytes fit into a push: less the header, the tag and the byte that ends the text.
pub const MOST_PLAINTEXT: usize = RECORD_BYTES as usize - HEADER_BYTES - TAG_BYTES - 1;

/// The last record of a text ends with it.
const LAST_RECORD: u8 = 2;

/// Bytes that HKDF gives.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Encrypts a text of at most [`MOST_PLAINTEXT`] bytes for a browser, with a key and a salt of its own.
pub fn encrypt(plaintext: &[u8], subscription: &PushSubscription) -> Result<Vec<u8>, Unspecified> {
    let random = SystemRandom::new();
    let mut salt = [0; SALT_BYTES];
    random.fill(&mut salt)?;
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &random)?;
    let public = private.compute_public_key()?;
    let theirs = UnparsedPublicKey::new(&ECDH_P256, subscription.p256dh());
    agree_ephemeral(private, &theirs, |secret| seal(plaintext, subscription, secret, public.as_ref(), &salt))?
}

/// The rest, once a secret is agreed on: the keys, the record and its header.
fn seal(
    plaintext: &[u8],
    subscription: &PushSubscription,
    secret: &[u8],
    public: &[u8],
    salt: &[u8; SALT_BYTES],
) -> Result<Vec<u8>, Unspecified> {
    if plaintext.len() > MOST_PLAINTEXT {
        return Err(Unspecified);
    }
    let mut input = [0; 32];
    let who = [b"WebPush: info\0".as_slice(), subscription.p256dh(), public];
    expand(&Salt::new(HKDF_SHA256, subscription.auth()).extract(secret), &who, &mut input)?;
    let keys = Salt::new(HKDF_SHA256, salt).extract(&input);
    let (mut key, mut nonce) = ([0; 16], [0; 12]);
    expand(&keys, &[b"Content-Encoding: aes128gcm\0"], &mut key)?;
    expand(&keys, &[b"Content-Encoding: nonce\0"], &mut nonce)?;
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?);
    let mut record = [plaintext, &[LAST_RECORD]].concat();
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record)?;
    let length = u8::try_from(public.len()).map_err(|_| Unspecified)?;
    Ok([salt.as_slice(), &RECORD_BYTES.to_be_bytes(), &[length], public, &record].concat())
}

fn expand(from: &Prk, info: &[&[u8]], into: &mut [u8]) -> Result<(), Unspecified> {
    from.expand(info, Length(into.len()))?.fill(into)
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    /// RFC 8291, appendix A and section 5.
    #[test]
    fn the_example_of_the_rfc_is_encrypted_as_it_says() {
        let browser = PushSubscription::new(
            "ann",
            "https://push.example.net/push/JzLQ3raZJfFBR0aqvOMsLrt54w4rJUsV",
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "BTBZMqHH6r4Tts7J_aSIgg",
        )
        .unwrap();
        let secret = bytes("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs");
        let public = bytes("BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8");
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw").try_into().unwrap();
        let sealed = seal(b"When I grow up, I want to be a watermelon", &browser, &secret, &public, &salt).unwrap();
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6Tlz\
                        AC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";
        assert_eq!(URL_SAFE_NO_PAD.encode(sealed), expected);
    }

    #[test]
    fn what_fills_a_record_is_as_large_as_push_services_take() {
        let browser = PushSubscription::new(
            "ann",
            "https://push.example/1",
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "BTBZMqHH6r4Tts7J_aSIgg",
        )
        .unwrap();
        assert_eq!(MOST_PLAINTEXT, 3993);
        let (one, other) = (encrypt(&[b'x'; 3993], &browser).unwrap(), encrypt(&[b'x'; 3993], &browser).unwrap());
        assert_eq!((one.len(), other.len()), (4096, 4096));
        assert!(one[..16] != other[..16] && one[21..86] != other[21..86], "a salt and a key for each");
        assert!(encrypt(&[b'x'; 3994], &browser).is_err());
    }
}
