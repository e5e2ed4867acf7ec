"""The verb of previews, as the waist has it."""

from sandlot.contracts import PreviewBook
from sandlot.host.session import Session
from sandlot.model import InvalidState, Preview, PreviewRequest, SessionDestroying, SessionState


async def issue_preview(book: PreviewBook | None, session: Session, request: PreviewRequest) -> Preview:
    if session.row.state is SessionState.DESTROYING:
        raise SessionDestroying(f"session {request.session_id} is being destroyed", session_id=request.session_id)
    if book is None:
        raise InvalidState("no server shows ports of this engine", next_step="use `sandlot serve`")
    return await book.issue(session.info(), request)
