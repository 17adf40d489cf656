#!/bin/bash
# The reward: that the file is right, that the Dockerfile's steps were done, and that there is no network.
right=0
if [ "$(wc -l </app/primes.txt)" = 50 ] && [ "$(tail -n 1 /app/primes.txt)" = 229 ] && grep -q '^made in /app by ' /app/made.txt &&
   ! timeout 5 bash -c '</dev/tcp/1.1.1.1/80' 2>/dev/null; then
	right=1
fi
cat /app/made.txt
echo "$right" >/logs/verifier/reward.txt
