package bench

import (
	"fmt"
	"io"
	"sync"
)

// atOnce is how many of many things are opened or closed at once.
const atOnce = 32

// openAll opens n of something, some at once. Where one fails all are closed.
func openAll[T io.Closer](n int, open func() (T, error)) ([]T, error) {
	list, errs := make([]T, n), make([]error, n)
	each(n, func(i int) { list[i], errs[i] = open() })
	for i, err := range errs {
		if err == nil {
			continue
		}
		for j, err := range errs {
			if err == nil {
				list[j].Close()
			}
		}
		return nil, fmt.Errorf("the %d. of %d: %w", i+1, n, err)
	}
	return list, nil
}

// closeAll closes what openAll has opened. What cannot be told to the other end any more is gone all the same.
func closeAll[T io.Closer](list []T) { each(len(list), func(i int) { list[i].Close() }) }

// each does something for each i below n.
func each(n int, do func(i int)) {
	var all sync.WaitGroup
	for worker := range min(n, atOnce) {
		all.Go(func() {
			for i := worker; i < n; i += atOnce {
				do(i)
			}
		})
	}
	all.Wait()
}
