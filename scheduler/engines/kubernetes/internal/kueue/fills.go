package kueue

import "time"

// fills remembers since when the caches of jobs have not grown. A new process starts anew.
type fills struct {
	byJob map[string]fill
}

type fill struct {
	bytes int64
	since time.Time
}

// since returns when the cache of a job reached this size, as far as this process has seen.
func (f *fills) since(job string, bytes int64) time.Time {
	if f.byJob == nil {
		f.byJob = make(map[string]fill)
	}
	if known, is := f.byJob[job]; is && bytes <= known.bytes {
		return known.since
	}
	f.byJob[job] = fill{bytes, time.Now()}
	return f.byJob[job].since
}

func (f *fills) forget(job string) {
	delete(f.byJob, job)
}

// keep forgets all jobs without a claim.
func (f *fills) keep(claims map[string]*claim) {
	for job := range f.byJob {
		if claims[job] == nil {
			delete(f.byJob, job)
		}
	}
}
