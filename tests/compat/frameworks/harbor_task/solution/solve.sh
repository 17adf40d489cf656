#!/bin/bash
# As an agent would work: in the task's directory, with what the environment brought.
set -e
first=$(cat first.txt)
python3 -c "print(*[n for n in range($first, 230) if all(n % d for d in range(2, n))], sep='\n')" >primes.txt
