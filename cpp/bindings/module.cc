#include "bindings/bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "Outcrop's core: what touches each row or edge.";
  outcrop::bindings::BindErrors(m);
  outcrop::bindings::BindDisk(m);
  outcrop::bindings::BindIngest(m);
  outcrop::bindings::BindSynth(m);
  outcrop::bindings::BindRows(m);
  outcrop::bindings::BindSample(m);
  outcrop::bindings::BindMemory(m);
  outcrop::bindings::BindCache(m);
  outcrop::bindings::BindRefcount(m);
  outcrop::bindings::BindNeighbor(m);
  outcrop::bindings::BindLayout(m);
  outcrop::bindings::BindSegment(m);
  outcrop::bindings::BindBlocks(m);
  outcrop::bindings::BindParts(m);
}
