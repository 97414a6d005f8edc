"""`python -m engine certify`: checks that speculative decoding with this pair is lossless."""

from __future__ import annotations

from engine import interrupt
from engine.commands import (Progress, add_model_options, add_pair_options, look_over, number, printable, quiet, require_writable,
                             write_json)
from engine.driver import load
from engine.request import CompareRequest
from engine.streams import out, tell


def add_parser(subparsers) -> None:
    p = subparsers.add_parser("certify", help="check that a pair decodes losslessly", allow_abbrev=False,
                              description="Check on real models that speculative decoding changes nothing but the speed. "
                                          "Exit status 0 when every check passes, 1 otherwise.")
    add_pair_options(p, lookup="certify prompt lookup, without a draft model")
    p.add_argument("--gamma", type=number("gamma"), default=4, metavar="N", help="draft tokens a round, 1-16 (4)")
    p.add_argument("--max-tokens", type=number("certified_tokens"), default=32, metavar="N", help="tokens a prompt (32)")
    add_model_options(p)


def run(args) -> int:
    require_writable(args.json)
    with interrupt.stopping() as signals:
        certificate = _certify(args, signals)
        if certificate is None:
            tell("speclens: stopped; nothing was certified.")
            return signals.status
        from engine.certify import to_data

        if args.json:
            write_json(to_data(certificate), args.json)
        if args.json != "-":
            lines = (f"{'pass' if check.passed else 'FAIL'}  {check.name:<16} {check.sentence}" for check in certificate.checks)
            out(printable("".join(line + "\n" for line in lines)))
    return 0 if certificate.passed else 1


def _certify(args, signals: interrupt.Stopping):
    """Load the pair and check it; None if a signal stopped it."""
    with quiet(args.debug) as terminal, Progress(terminal) as progress:
        progress.say("Looking for the models", now=True)
        look_over(CompareRequest("", args.verifier, args.draft, backend=args.backend, device=args.device, dtype=args.dtype))
        from engine.certify import Stopped, certify
        from engine.models.registry import twin

        progress.say(f"Loading {args.verifier}", now=True)
        verifier = load(args.verifier, args.backend, args.device, args.dtype)
        if args.draft:
            progress.say(f"Loading {args.draft}", now=True)
        draft = load(args.draft, args.backend, args.device, args.dtype) if args.draft else None
        signals.arm()
        try:
            return certify(verifier, draft, gamma=args.gamma, max_tokens=args.max_tokens, tell=progress.say, stop=signals.asked, twin=twin)
        except Stopped:
            return None
