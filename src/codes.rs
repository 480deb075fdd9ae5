//! Numeric encoding of a call, for messages and flight recorders.

use std::borrow::Cow;

use bytemuck::{Pod, Zeroable};
use unisono_collectives::{Algorithm, Operation, Rank};

use crate::call::Call;
use crate::dtype::DType;
use crate::kernels::{Custom, ReduceOp};
use crate::method::Method;
use crate::record::{BARRIER_NAME, MESSAGE_NAME};

/// The method of a call, and its arguments except the count. From the lowest bits: the root in 32 bits, then the operation,
/// reduction, type and method in 8 bits each. All ones mean none. A call on wide elements, which has no reduction and the type
/// `u8`, stores their width in place of both. A call with a custom reduction stores 16 bits of its fingerprint there, which
/// includes the type. The next 32 bits of the fingerprint are combined with the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Codes(u64);

impl Codes {
    pub(crate) fn new(call: &Call, method: Method) -> Self {
        let mut root = call.operation.root().map_or(u32::MAX, |root| root as u32);
        let is_barrier = *call == Call::barrier() && method == Method::Algorithm(OF_BARRIER);
        let operation = if is_barrier { BARRIER } else { operation_code(call.operation) };
        let (flag, [low, high]) = match (call.op, call.width) {
            (Some(ReduceOp::Custom(custom)), _) => {
                root ^= rooted(custom.fingerprint());
                (CUSTOM, (custom.fingerprint() as u16).to_le_bytes())
            }
            (op, 1) => (0, [op.map_or(u8::MAX, op_code), call.dtype as u8]),
            (_, width) => (WIDE, width.to_le_bytes()),
        };
        Self::of([operation | flag, low, high, method.code()], root)
    }

    /// Returns the codes of a point-to-point message, which has no reduction, root or method.
    pub(crate) fn of_message(dtype: DType) -> Self {
        Self::of([MESSAGE, u8::MAX, dtype as u8, u8::MAX], u32::MAX)
    }

    fn of(bytes: [u8; 4], root: u32) -> Self {
        Self(u64::from(u32::from_le_bytes(bytes)) << 32 | u64::from(root))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn byte(self, place: u32) -> u8 {
        (self.0 >> (32 + 8 * place)) as u8
    }

    /// Returns the positions of the operation and of the method among all of them. A barrier follows the operations, and a message has no method.
    #[inline]
    pub(crate) fn kind(self) -> (usize, usize) {
        ((self.byte(0) & !(WIDE | CUSTOM)).into(), self.byte(3).into())
    }

    /// Returns the name of the operation, `barrier`, or `message`; `?` for an unknown code.
    pub(crate) fn operation(self) -> &'static str {
        let flags = if self.byte(0) == u8::MAX { 0 } else { WIDE | CUSTOM };
        match self.byte(0) & !flags {
            BARRIER => BARRIER_NAME,
            MESSAGE => MESSAGE_NAME,
            code => name(&Operation::all(0).map(Operation::name), code),
        }
    }

    pub(crate) fn is_barrier(self) -> bool {
        self.byte(0) == BARRIER
    }

    pub(crate) fn is_message(self) -> bool {
        self.byte(0) == MESSAGE
    }

    /// Returns whether the elements are wide. No call has the operation 0xff.
    fn is_wide(self) -> bool {
        self.byte(0) & WIDE != 0 && self.byte(0) != u8::MAX
    }

    fn is_custom(self) -> bool {
        self.byte(0) & (WIDE | CUSTOM) == CUSTOM
    }

    /// Returns the custom reduction, if this process has defined it.
    fn custom(self) -> Option<Custom> {
        let code = u16::from_le_bytes([self.byte(1), self.byte(2)]);
        if self.is_custom() { Custom::by_code(code) } else { None }
    }

    /// Returns the name of the element type; `[u8; 3]` for elements of 3 bytes without one.
    pub(crate) fn dtype(self) -> Cow<'static, str> {
        if self.is_wide() {
            return format!("[u8; {}]", u16::from_le_bytes([self.byte(1), self.byte(2)])).into();
        }
        if self.is_custom() {
            return match self.custom().map(Custom::element) {
                Some((dtype, 1)) => dtype.name().into(),
                Some((_, width)) => format!("[u8; {width}]").into(),
                None => "elements".into(),
            };
        }
        name(&DType::ALL.map(DType::name), self.byte(2)).into()
    }

    pub(crate) fn method(self) -> &'static str {
        name(&Method::ALL.map(Method::name), self.byte(3))
    }

    pub(crate) fn op(self) -> Option<&'static str> {
        if self.is_custom() {
            return Some(self.custom().map_or("a reduction that this process has not defined", Custom::name));
        }
        (self.byte(1) != u8::MAX && !self.is_wide())
            .then(|| name(&ReduceOp::ALL.map(ReduceOp::name), self.byte(1)))
    }

    pub(crate) fn root(self) -> Option<Rank> {
        let combined = if self.is_custom() { rooted(self.custom()?.fingerprint()) } else { 0 };
        let root = self.0 as u32 ^ combined;
        (root != u32::MAX).then_some(root as Rank)
    }
}

/// Set in the code of an operation on wide elements.
const WIDE: u8 = 0x80;
/// Set in the code of an operation with a custom reduction.
const CUSTOM: u8 = 0x40;
const BARRIER: u8 = Operation::all(0).len() as u8;
const MESSAGE: u8 = BARRIER + 1;
/// The algorithm of a barrier.
pub const OF_BARRIER: Algorithm = Algorithm::RecursiveDoubling;

fn name(names: &[&'static str], code: u8) -> &'static str {
    names.get(usize::from(code)).copied().unwrap_or("?")
}

/// Returns the bits of a fingerprint that are combined with the root.
fn rooted(fingerprint: u64) -> u32 {
    (fingerprint >> 16) as u32
}

fn op_code(op: ReduceOp) -> u8 {
    let found = ReduceOp::ALL.iter().position(|known| *known == op);
    found.map_or(u8::MAX, |position| position as u8)
}

fn operation_code(operation: Operation) -> u8 {
    let all = Operation::all(operation.root().unwrap_or(0));
    all.iter().position(|&one| one == operation).expect("the list has every operation") as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_unique_code() {
        for (code, operation) in Operation::all(0).into_iter().enumerate() {
            assert_eq!(usize::from(operation_code(operation)), code);
            assert!(
                code < usize::from(BARRIER)
                    && Codes::of_bits((code as u64) << 32).operation() == operation.name()
            );
        }
        let codes = Codes::new(&Call::barrier(), Method::Algorithm(OF_BARRIER));
        assert!(codes.is_barrier() && codes.operation() == "barrier");
        let codes = Codes::of_message(DType::BF16);
        assert!(codes.is_message() && !codes.is_barrier());
        assert_eq!(
            (codes.operation(), &*codes.dtype(), codes.op(), codes.root()),
            ("message", "bf16", None, None)
        );
    }

    #[test]
    fn wide_elements_encode_their_width() {
        for width in [2, 3, 255, 256, u16::MAX] {
            let gather = Call::new(Operation::Gather { root: 3 }, None, DType::U8, 7);
            let codes = Codes::new(&Call { width, ..gather }, Method::Algorithm(Algorithm::Ring));
            assert_eq!((codes.operation(), codes.op(), codes.root()), ("gather", None, Some(3)));
            assert_eq!((codes.dtype().into_owned(), codes.method()), (format!("[u8; {width}]"), "ring"));
            assert!(!codes.is_barrier() && !codes.is_message());
        }
    }

    #[test]
    fn custom_reductions_encode_their_fingerprint() {
        let ignore = |_: &mut [u8], _: &[u8]| {};
        let pair = ReduceOp::custom_bytes("pair of codes", 16, true, ignore);
        let reduce = Call { width: 16, ..Call::new(Operation::Reduce { root: 3 }, Some(pair), DType::U8, 7) };
        let of = |call: &Call| Codes::new(call, Method::Algorithm(Algorithm::Ring));
        let codes = of(&reduce);
        assert_eq!((codes.operation(), codes.op(), codes.root()), ("reduce", Some("pair of codes"), Some(3)));
        assert_eq!((&*codes.dtype(), codes.method()), ("[u8; 16]", "ring"));
        let all_reduce = of(&Call { operation: Operation::AllReduce, ..reduce });
        assert_eq!((all_reduce.operation(), all_reduce.root()), ("all-reduce", None));
        let again = ReduceOp::custom_bytes("pair of codes", 16, true, ignore);
        assert_eq!(of(&Call { op: Some(again), ..reduce }), codes);
        let ordered = ReduceOp::custom_bytes("pair of codes", 16, false, ignore);
        assert_ne!(of(&Call { op: Some(ordered), ..reduce }), codes);
        // The name of a reduction that this process has not defined is unknown.
        let unknown = Codes::of_bits(codes.bits() ^ 1 << 40);
        assert_eq!((unknown.operation(), &*unknown.dtype(), unknown.root()), ("reduce", "elements", None));
    }

    #[test]
    fn unknown_codes_have_placeholder_names() {
        let codes = Codes::of_bits(u64::MAX);
        assert_eq!((codes.operation(), &*codes.dtype(), codes.method()), ("?", "?", "?"));
        assert_eq!((codes.op(), codes.root()), (None, None));
    }
}
