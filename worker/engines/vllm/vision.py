"""Text generation with images: vLLM's own renderer puts them where the model's template wants them.

An image is read and decoded in a thread once its row has a place in the engine, so that no more
pictures are in memory than rows under way, and the loop that feeds the engine moves on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.multimodal.image import convert_image_mode
from vllm.renderers import ChatParams

from common.errors import JobRefused
from common.states import RowErrorKind
from worker.engines.protocol import Outcome, Refusal, Request, Work
from worker.engines.vllm.generate import Generation
from worker.images import BadImage

READ_SECONDS = 60.0
"""Of all images of a row; less than the time after which an engine that stands still is ended."""

CHAT = ChatParams(chat_template_kwargs={"add_generation_prompt": True})


class Vision(Generation):
    """Asks for the text of rows that have images among their messages."""

    def prepare(self, work: Work) -> Sequence[tuple[int, Any]]:
        """Nothing to tokenise yet: how many tokens an image has is known once it is decoded.

        JobRefused for a model that takes only text.
        """
        config = self._model.llm.model_config
        if not config.is_multimodal_model:
            raise JobRefused(
                f"task.messages has images, and the model {config.model} takes only text"
            )
        self.verify()
        return [(position, None) for position in range(len(work.requests))]

    async def ask(self, request: Request, prompt: Any) -> tuple[Outcome, float]:
        """The row's outcome, and for how many seconds it waited in vLLM's own queue."""
        reading = asyncio.to_thread(_with_pictures, request.messages or ())
        try:
            messages = await asyncio.wait_for(reading, READ_SECONDS)
        except BadImage as error:
            return Refusal(RowErrorKind.RENDER_ERROR, str(error)), 0.0
        except TimeoutError:
            said = f"its images could not be read within {READ_SECONDS:g} s"
            return Refusal(RowErrorKind.RENDER_ERROR, said), 0.0
        return await super().ask(request, messages)

    async def _ready(self, prompt: Any) -> Any:
        try:
            # Anew for each try: vLLM keeps only the newest images of those that it was sent.
            _, (ready,) = await self._model.llm.renderer.render_chat_async([prompt], CHAT)
        except VLLMValidationError as error:
            if error.parameter != "input_tokens":
                raise
            return self.too_long(int(error.value))
        count = len(ready["prompt_token_ids"])
        return self.too_long(count) if count >= self._model.longest else ready


def _with_pictures(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as vLLM's renderer takes them; BadImage for the first that cannot be used."""
    return [
        {**message, "content": _content(message["content"])}
        if isinstance(message["content"], list)
        else dict(message)
        for message in messages
    ]


def _content(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "image_pil",
            "image_pil": convert_image_mode(part["image"].picture(), "RGB"),
        }
        if part["type"] == "image"
        else dict(part)
        for part in parts
    ]
