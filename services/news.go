package services

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
)

// maxBatchBytes is how much of a frame a batch of sessions takes at most; a registration has its endpoints beside it.
const maxBatchBytes = wire.MaxBody * 3 / 4

// maxUntold is how many sessions that ended before a broker was told of them are kept for it; older ones are dropped first.
const maxUntold = 1000

// A news is what a broker has yet to be told of an instance's sessions. What has begun under the present broker is never dropped, so that its table comes to be true; of what ended and
// that no broker may know, the last maxUntold are kept.
type news struct {
	some chan struct{} // room for one: there is something to take

	mu     sync.Mutex
	live   map[string]wire.SessionInfo
	fresh  []wire.SessionInfo // opened and not told, also if they have ended since
	closed []wire.SessionInfo // ended, and told as open or fresh
	untold []wire.SessionInfo // ended, and never told to the present broker as open: at most maxUntold
}

func (n *news) init() {
	n.some = make(chan struct{}, 1)
	n.live = map[string]wire.SessionInfo{}
}

// opened notes a session that has begun.
func (n *news) opened(info wire.SessionInfo) {
	n.mu.Lock()
	n.live[info.ID] = info
	n.fresh = append(n.fresh, info)
	n.mu.Unlock()
	n.tell()
}

// ended notes that a session has ended.
func (n *news) ended(id string, end wire.End) {
	n.mu.Lock()
	info, live := n.live[id]
	n.mu.Unlock()
	if live {
		n.over(info, end)
	}
}

// over notes a session that has ended, or that never began.
func (n *news) over(info wire.SessionInfo, end wire.End) {
	info.ClosedAt, info.End = time.Now().UnixNano(), &end
	n.mu.Lock()
	delete(n.live, info.ID)
	n.closed = append(n.closed, info)
	n.mu.Unlock()
	n.tell()
}

func (n *news) keepLocked(infos ...wire.SessionInfo) {
	n.untold = append(n.untold, infos...)
	if over := len(n.untold) - maxUntold; over > 0 {
		n.untold = n.untold[over:]
	}
}

func (n *news) tell() {
	select {
	case n.some <- struct{}{}:
	default:
	}
}

// A batch is sessions that are told in one message.
type batch struct {
	infos []wire.SessionInfo
	bytes int
}

// add adds a session if there is room for it.
func (b *batch) add(info wire.SessionInfo) bool {
	const fixed = 256 // of the numbers, the ids and the keys
	size := fixed + len(info.Endpoint) + len(info.Title) + len(info.Client.Program)
	if info.End != nil {
		size += len(info.End.Text)
	}
	if len(b.infos) == wire.MaxBatch || b.bytes+size > maxBatchBytes {
		return false
	}
	b.infos, b.bytes = append(b.infos, info), b.bytes+size
	return true
}

// take takes the sessions of one batch, those that opened first.
func (n *news) take() []wire.SessionInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b batch
	for _, list := range []*[]wire.SessionInfo{&n.fresh, &n.closed, &n.untold} {
		for ; len(*list) > 0; *list = (*list)[1:] {
			if !b.add((*list)[0]) {
				return b.infos
			}
		}
	}
	return b.infos
}

// again has everything told again, to a new broker, and what was taken and not told.
func (n *news) again(taken []wire.SessionInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fresh = slices.Collect(maps.Values(n.live))
	for _, info := range taken {
		if info.End != nil {
			n.keepLocked(info)
		}
	}
	n.keepLocked(n.closed...)
	n.closed = nil
}
