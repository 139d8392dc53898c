package broker

import (
	"log/slog"
	"time"

	"github.com/fairlead-dev/fairlead/internal/pace"
)

// A denials logs what is refused to peers. They can cause any number of lines, so what is over pace.Lines in a second is only counted.
type denials struct {
	log  *slog.Logger
	rate pace.Limiter
}

// warn logs a refusal, or counts it. It is called when the peer has its answer, since a log may be slow; only a command's is before.
func (d *denials) warn(what string, args ...any) {
	tell, untold := d.rate.Admit(time.Now())
	if tell && untold > 0 {
		args = append(args, "more", untold)
	}
	if tell {
		d.log.Warn(what, args...)
	}
}
