//! Base64 as clients send it: any alphabet, with or without padding, wrapped lines, bare or in a data URL.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::{Error, Result};

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);

/// Encodes with the standard alphabet and padding.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes the standard or the URL-safe alphabet, padded or not; white space anywhere is ignored.
/// Text that starts with `data:` (in any case) is a data URL: its payload is decoded, and it must say `;base64`.
pub fn decode(text: &[u8]) -> Result<Vec<u8>> {
    let text = text.trim_ascii();
    let is_url = text.get(..5).is_some_and(|head| head.eq_ignore_ascii_case(b"data:"));
    let payload = if is_url { url_payload(&text[5..])? } else { text };
    if let Ok(bytes) = STANDARD.decode(payload) {
        return Ok(bytes);
    }
    let plain: Vec<u8> = payload
        .iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => *other,
        })
        .collect();
    STANDARD.decode(&plain).map_err(|fault| Error::media(format!("broken base64: {}", reason(&fault))))
}

fn url_payload(url: &[u8]) -> Result<&[u8]> {
    let comma = url.iter().position(|&byte| byte == b',');
    let comma = comma.ok_or_else(|| Error::media("the data URL has no comma before its payload"))?;
    let (head, payload) = (&url[..comma], &url[comma + 1..]);
    let encoding = head.rsplit(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    if head.contains(&b';') && encoding.eq_ignore_ascii_case(b"base64") {
        return Ok(payload);
    }
    Err(Error::media("the data URL is not marked \";base64\": only base64 payloads are accepted"))
}

fn reason(fault: &base64::DecodeError) -> String {
    match fault {
        base64::DecodeError::InvalidByte(place, _)
        | base64::DecodeError::InvalidLastSymbol { offset: place, .. } => {
            format!("a byte outside the alphabet at position {place}, white space not counted")
        }
        base64::DecodeError::InvalidLength(length) => format!("{length} symbols do not make whole bytes"),
        base64::DecodeError::InvalidPadding => "padding in the wrong place".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_the_same_bytes() {
        let bytes = [0xfb, 0xef, 0xff, 0x01];
        for text in [
            "++//AQ==",
            "++//AQ",
            "--__AQ",
            "++//\r\nAQ==\n",
            " ++//AQ== ",
            "data:image/png;base64,++//AQ==",
            "DATA:IMAGE/PNG;BASE64,++//AQ",
            "data:image/png;charset=utf-8;base64,--__AQ==",
            "data:;base64,++//AQ==",
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap(), bytes, "{text}");
        }
        assert_eq!(encode(&bytes), "++//AQ==");
    }

    #[test]
    fn faults_say_why() {
        for (text, part) in [
            ("AA*A", "position 2"),
            ("AAAAA", "symbols"),
            ("data:image/png,AAAA", ";base64"),
            ("data:base64,AAAA", ";base64"),
            ("data:image/png;base64", "comma"),
            ("A===A", "base64"),
        ] {
            let sentence = decode(text.as_bytes()).unwrap_err().to_string();
            assert!(sentence.contains(part), "{text}: {sentence}");
        }
    }
}
