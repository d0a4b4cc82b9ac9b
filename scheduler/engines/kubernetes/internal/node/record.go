// Package node makes the larderd of one node have the Datasets of the cluster.
package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// added is what the record says of a dataset that this program has added.
type added struct {
	// The digest of the settings with which it was added: see digestOf.
	Digest string `json:"digest"`
	// True once its quota was filled, if the spec asks for that.
	Warmed bool `json:"warmed"`
}

// A record tells which datasets this program has added. It is on the node's disk, so that a dataset is removed here even
// if it was deleted while the node was away. Datasets that an administrator has added by hand are not in it.
type record struct {
	path     string
	Datasets map[string]added `json:"datasets"`
}

func loadRecord(path string) (*record, error) {
	loaded := &record{path: path, Datasets: make(map[string]added)}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return loaded, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record: %w", err)
	}
	if err := json.Unmarshal(text, loaded); err != nil {
		return nil, fmt.Errorf("read the record %s: %w", path, err)
	}
	if loaded.Datasets == nil {
		loaded.Datasets = make(map[string]added)
	}
	return loaded, nil
}

func (r *record) set(name string, entry added) error {
	if r.Datasets[name] == entry {
		return nil
	}
	r.Datasets[name] = entry
	return r.save()
}

func (r *record) forget(name string) error {
	delete(r.Datasets, name)
	return r.save()
}

func (r *record) save() error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return replaceFile(r.path, text)
}

// replaceFile writes a file that is either the old one or the new one after a crash. Only its owner may read it.
func replaceFile(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
