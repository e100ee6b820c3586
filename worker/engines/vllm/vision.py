"""Text generation with images: vLLM's renderer puts images where the model's template wants them.

Images are read for rows that have a place in the engine and decoded for a few rows at a time. A
decoded image is dropped once vLLM's processor has taken it, before its row is answered.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.image import convert_image_mode
from vllm.renderers import ChatParams

from nightshift.common.errors import JobRefused
from nightshift.common.spec import GenerateTask
from nightshift.common.states import RowErrorKind
from nightshift.worker.engines.images import BadImage, BatchReads, Image, Messages, with_images
from nightshift.worker.engines.protocol import Refusal, Work
from nightshift.worker.engines.vllm.answers import Opening
from nightshift.worker.engines.vllm.generate import Generation, Prompt, Ready
from nightshift.worker.engines.vllm.model import Model

log = structlog.get_logger(__name__)


class Vision(Generation):
    """The text of rows that have images among their messages."""

    def __init__(
        self, model: Model, task: GenerateTask, resolved: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(model, task, resolved)
        self._reads = BatchReads(model.reads)

    def prepare(self, work: Work) -> Sequence[tuple[int, Any]]:
        """The messages, not tokenised: only a decoded image shows how many tokens it has.

        JobRefused for a model that takes only text.
        """
        config = self._model.llm.model_config
        if not config.is_multimodal_model:
            raise JobRefused(
                f"task.messages has images, and the model {config.model} takes only text"
            )
        self.verify()
        prompts = []
        for position, request in enumerate(work.requests):
            arguments = self._split.arguments(request.template_arguments)
            opening = self._opening(request.messages or (), arguments)
            prompts.append((position, Prompt(request.messages or (), opening, arguments)))
        return prompts

    async def _ready(self, prompt: Prompt) -> Ready | Refusal:
        # Anew for each sample: vLLM keeps only the newest of the images that it was sent.
        try:
            fetched = await self._reads.run(partial(with_images, prompt.content, _fetched))
            async with self._model.decoding:
                ready = await self._with_template(fetched, prompt.arguments)
        except BadImage as error:
            # An outcome like any other: the row counts as progress, with the tokens of its tries.
            return Refusal(RowErrorKind.RENDER_ERROR, str(error))
        except VLLMValidationError as error:
            if error.parameter != "input_tokens":
                raise
            return self.too_long(int(error.value))
        ids = ready["prompt_token_ids"]
        if len(ids) >= self._model.longest:
            return self.too_long(len(ids))
        return Ready(ready, prompt.opening)

    def _opening(self, messages: Messages, arguments: Mapping[str, Any]) -> Opening:
        """Where the answer begins: by the template's text of the chat, in which an image is a mark."""
        if self._split.family is None:
            return Opening()
        marked = [dict(each) for each in with_images(messages, lambda _: {"type": "image"})]
        try:
            text = self._templated(marked, arguments)
        except Exception as error:  # a template may raise whatever it likes; vLLM says why
            log.debug("chat_not_templated", error=str(error))
            text = ""
        return self._split.opening(arguments, marked, text)

    async def _with_template(self, messages: Messages, arguments: Mapping[str, Any]) -> Any:
        decoded = await asyncio.to_thread(with_images, messages, _decoded)
        chat = ChatParams(chat_template_kwargs={"add_generation_prompt": True, **arguments})
        _, (ready,) = await self._model.llm.renderer.render_chat_async([decoded], chat)
        return ready


def _fetched(image: Image) -> dict[str, Any]:
    return {"type": "image", "image": image.fetched()}


def _decoded(image: Image) -> dict[str, Any]:
    """The part as vLLM's renderer takes it."""
    return {"type": "image_pil", "image_pil": convert_image_mode(image.picture(), "RGB")}
