"""The tiny pair's training script: its corpus, its measurements against plain ones, a whole run in a few seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from specplan.engine.recorder import record_pair
from specplan.errors import ConfigError, FileError
from specplan.models import Decoder, DecoderConfig, DenseAttention, load_model
from specplan.models.tiny import train
from specplan.models.tiny.corpus import (
    END_OF_TEXT,
    Documents,
    Mixture,
    read_code,
    read_corpus,
    token_stream,
    train_tokenizer,
)
from specplan.models.tiny.distil import distil_loss, greedy_rows
from specplan.models.tiny.evaluate import Evaluation, accepted_lens, bits_per_byte, greedy_continuations
from specplan.models.tiny.fitting import fit, initialise, next_token_loss, round_to_bfloat16
from specplan.models.tiny.prompts import held_out_prompts
from specplan.models.tiny.saving import save_model
from specplan.models.tiny.train import Recipe, tiny_config, train_pair

SPEECHES = "".join(f"SPEAKER {i}:\nA line of speech number {i},\nand then another.\n\n" for i in range(60))
FOLDER_OF_TEXTS = {
    "tinyshakespeare.txt": "".join(
        f"SPEAKER {i}:\nA line of speech number {i},\nand then another.\n\n" for i in range(60)
    ),
    "gsm8k_train.jsonl": 20 * (json.dumps({"question": "How many?", "answer": "1+1=<<1+1=2>>2\n#### 2"}) + "\n"),
    "gsm8k_test.jsonl": 20 * (json.dumps({"question": "How few?", "answer": "None.\n#### 0"}) + "\n"),
}


def small_config(**changes: int) -> DecoderConfig:
    return tiny_config(**{"hidden": 32, "layers": 1, "intermediate": 48, "heads": 2, "kv_heads": 1, **changes})


def decoder(seed: int, **changes: int) -> Decoder:
    model = Decoder(small_config(**changes))
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def dense_next_tokens(model: Decoder, tokens: Tensor) -> Tensor:  # [length] -> [length]
    """The most likely token after each prefix, without a cache."""
    hidden = model(tokens, torch.arange(len(tokens)), DenseAttention(1))
    return model.logits(hidden).argmax(-1)


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    for name, text in FOLDER_OF_TEXTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def corpus(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Documents]:
    source = Path(train.__file__).read_text()
    code = Documents(train=(source,), held_out=(Path(__file__).read_text(),))
    monkeypatch.setattr("specplan.models.tiny.corpus.read_code", lambda stdlib: code)
    return read_corpus(text_folder)


def test_code_is_held_out_by_name_and_tests_are_left_out(tmp_path: Path) -> None:
    names = [f"module_{i}.py" for i in range(60)]
    for name in [*names, "tests/test_a.py", "site-packages/b.py"]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    documents = read_code(tmp_path)
    assert sorted(documents.train + documents.held_out) == sorted(names)
    assert 0 < len(documents.held_out) < 10
    for name in documents.train[:30]:
        (tmp_path / name).unlink()
    assert read_code(tmp_path).held_out == documents.held_out


def test_plays_are_cut_where_a_speech_begins(corpus: dict[str, Documents]) -> None:
    plays = corpus["plays"]
    assert plays.train[0] + plays.held_out[0] == SPEECHES
    assert plays.held_out[0].startswith("SPEAKER 5")


def test_a_maths_document_is_a_question_and_its_answer(corpus: dict[str, Documents]) -> None:
    assert corpus["maths"].train == 20 * ("How many?\n1+1=<<1+1=2>>2\n#### 2\n",)
    assert corpus["maths"].held_out == 20 * ("How few?\nNone.\n#### 0\n",)


def test_a_missing_corpus_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"tinyshakespeare\.txt") as caught:
        read_corpus(tmp_path)
    assert "leave --corpus out" in caught.value.hint


def test_a_stream_is_its_documents_with_ends_of_text_around(corpus: dict[str, Documents]) -> None:
    tokenizer = train_tokenizer(corpus)
    texts = ("one\n", "two é\x00", "")
    stream = token_stream(tokenizer, texts)
    decoded = tokenizer.decode(stream.tolist(), skip_special_tokens=False)
    assert decoded == END_OF_TEXT + END_OF_TEXT.join(texts) + END_OF_TEXT


def test_an_epoch_visits_every_window_once() -> None:
    stream = np.arange(1000)
    starts = Mixture({"code": stream}, {"code": 1.0}, seed=0).rows(99, 10)[:, 0]
    assert len(set(starts.tolist())) == 99
    assert len({start % 10 for start in starts.tolist()}) == 1  # one phase


def test_a_mixture_keeps_its_shares_and_repeats_by_seed() -> None:
    streams = {"code": np.zeros(100, dtype=np.int64), "plays": np.ones(100, dtype=np.int64)}
    first, second = (Mixture(streams, {"code": 0.75, "plays": 0.25}, seed=3).rows(400, 5) for _ in range(2))
    assert torch.equal(first, second)
    assert first[:, 0].double().mean().item() == pytest.approx(0.25, abs=0.08)


def test_a_text_shorter_than_a_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="7 tokens cannot be read in rows of 8"):
        Mixture({"code": np.arange(7)}, {"code": 1.0}, seed=0).rows(1, 8)


def test_fit_learns() -> None:
    model = Decoder(small_config())
    initialise(model, seed=0)
    rows = torch.arange(17).repeat(8, 1)
    before = next_token_loss(model, rows).item()
    record = fit(model, lambda progress: rows, lambda batch: next_token_loss(model, batch), seconds=1.5)
    assert record.tokens == record.steps * 8 * 16
    assert next_token_loss(model, rows).item() < before / 2


def test_greedy_continuations_are_those_of_a_pass_over_everything() -> None:
    model = decoder(0)
    prompts = torch.randint(0, 1024, (3, 5), generator=torch.Generator().manual_seed(0))
    continued = torch.cat([prompts, greedy_continuations(model, prompts, 9)], dim=1)
    for row in continued:
        assert torch.equal(dense_next_tokens(model, row)[4:-1], row[5:])


def accepted_by_redoing_everything(draft: Decoder, row: Tensor, start: int, num_drafts: int) -> int:
    text = row[:start]
    for count in range(num_drafts):
        token = dense_next_tokens(draft, text)[-1]
        if token != row[start + count]:
            return count
        text = torch.cat([text, token[None]])
    return num_drafts


@pytest.mark.parametrize("prompt_len", [1, 4])
def test_accepted_lens_are_those_of_plain_drafting_and_of_the_recorder(prompt_len: int) -> None:
    target = decoder(0)
    draft = decoder(0)
    with torch.no_grad():  # close enough to its target to be right now and then
        for parameter in draft.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    prompts = torch.randint(0, 1024, (6, prompt_len), generator=torch.Generator().manual_seed(2))
    tokens = torch.cat([prompts, greedy_continuations(target, prompts, 12 + 3)], dim=1)
    accepted = accepted_lens(draft, tokens, prompt_len=prompt_len, num_drafts=3)
    assert len(set(accepted.flatten().tolist())) > 1
    plain = [[accepted_by_redoing_everything(draft, row, prompt_len + i, 3) for i in range(13)] for row in tokens]
    assert accepted.tolist() == plain
    recorded = record_pair(target, draft, prompts.tolist(), k=3, max_output_tokens=12, eos_token_ids=frozenset())
    assert accepted[:, :12].tolist() == [request.accepted_len.tolist() for request in recorded]


@pytest.mark.parametrize("length", [2, 8, 9, 13, 30])
def test_bits_per_byte_predicts_every_token_once(length: int) -> None:
    model = decoder(0)
    stream = np.random.default_rng(length).integers(0, 1024, size=length)
    tokens = torch.from_numpy(stream)
    bits = 0.0
    for index in range(1, length):
        start = max(
            0, (index - 1) // 4 * 4 - 4
        )  # where a window of 8 that moves by 4 and predicts its second half begins
        hidden = model(tokens[start:index], torch.arange(index - start), DenseAttention(1))
        bits -= F.log_softmax(model.logits(hidden[-1:]), dim=-1)[0, tokens[index]].item() / np.log(2)
    assert bits_per_byte(model, stream, 100, window=8) == pytest.approx(bits / 100, rel=1e-4)


def test_only_the_draft_learns_from_distillation() -> None:
    draft, target = decoder(0), decoder(1, layers=2)
    distil_loss(draft, target, torch.randint(0, 1024, (2, 9))).backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in draft.parameters())


def test_greedy_rows_are_the_target_s_own() -> None:
    target = decoder(0)
    text = Mixture({"code": np.arange(1000)}, {"code": 1.0}, seed=0)
    rows = greedy_rows(target, text, row_len=100, seconds=0.0)
    assert rows.shape == (256, 100)
    assert torch.equal(rows[:3, 12:], greedy_continuations(target, rows[:3, :12], 88))


def test_a_whole_run_leaves_a_pair_that_loads(
    text_folder: Path, corpus: dict[str, Documents], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specplan.models.tiny.distil.ROWS_PER_BATCH", 8)
    out = tmp_path / "out"
    recipe = Recipe(
        minutes=0.03,
        target=small_config(layers=2),
        draft=small_config(),
        tokens_per_step=128,
        draft_tokens_per_step=128,
        row_len=32,
        long_row_len=32,
        evaluation=Evaluation(num_drafts=3, prompts=2, prompt_len=4, outputs=5, tokens=100),
    )
    record = train_pair(recipe, corpus_folder=text_folder, out=out)
    assert (out / "TRAINING.json").read_text() == json.dumps(record, indent=2) + "\n"
    reached = record["held_out"]["plays"]
    assert f"| plays | {reached['target_bits_per_byte']:.2f} " in (out / "README.md").read_text()
    assert sum(reached["accepted_at_least"]) == pytest.approx(reached["accepted_len"], abs=0.01)
    weights = (out / "target" / "model.safetensors").read_bytes()

    resumed = train_pair(recipe, corpus_folder=text_folder, out=out, resume=True)
    assert (out / "target" / "model.safetensors").read_bytes() == weights
    assert resumed["target"] == record["target"]
    loaded = load_model(str(out / "target"), "target", device=torch.device("cpu"), dtype=torch.float32).decoder
    assert loaded.num_params == record["target"]["num_params"]


def test_what_is_stored_is_what_was_measured(tmp_path: Path, corpus: dict[str, Documents]) -> None:
    model = decoder(0)
    round_to_bfloat16(model)
    save_model(tmp_path / "model", model, train_tokenizer(corpus))
    loaded = load_model(str(tmp_path / "model"), "target", device=torch.device("cpu"), dtype=torch.float32).decoder
    for (name, stored), kept in zip(loaded.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(stored, kept), name


def test_prompts_are_beginnings_of_held_out_text() -> None:
    source = Path(__file__).read_text()
    prompts = held_out_prompts("code", Documents(train=(), held_out=(source,)), lambda text: len(text.split()) * 2)
    assert len(prompts) > 3
    for prompt in prompts:
        assert prompt.lstrip().startswith(("def ", "class "))
        assert prompt in source
        assert source[source.index(prompt) + len(prompt)] == "\n"
        assert 40 <= 2 * len(prompt.split()) <= 120


def test_speeches_begin_with_their_speaker(corpus: dict[str, Documents]) -> None:
    prompts = held_out_prompts("plays", corpus["plays"], lambda text: 2 * len(text.split()))
    assert prompts
    assert all(prompt.startswith("SPEAKER") and not prompt.endswith("\n") for prompt in prompts)


def test_a_maths_prompt_ends_where_the_answer_begins() -> None:
    documents = Documents(train=(), held_out=("How many?\nFour.\n",))
    assert held_out_prompts("maths", documents, lambda text: 50) == ["How many?\n"]
