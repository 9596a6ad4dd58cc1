package compose

// Images is [Packed.Images] of a file that is not packed.
func Images(file string, compose []byte, env map[string]string) ([]string, error) {
	d := &document{file: file, env: env}
	d.root, d.faults = parse(compose)
	if len(d.faults) > 0 {
		return nil, d.err()
	}
	return images(d)
}
